"""Plots in which somebody meets with trouble or with others. Knows nothing of how a story begins and ends.

Each gives paragraphs, questions, summary, title and what a request may say of it.
"""

import world
from cast import FEARS, GOODS, Cast, helper_questions, met, weather
from world import with_article


def lost(c: Cast):
    body = [
        c.say(
            "{time} {hero} went to {place} with {his} {colour} {thing}.",
            "{time} {hero} took {his} {colour} {thing} to {place}.",
        ),
        *weather(c),
        c.say(
            "{He} played until noon.",
            "{He} walked around and looked at everything.",
            "{He} had a wonderful time.",
            "{He} sat down for a short rest.",
        ),
        c.say(
            "But when {he} wanted to go home, the {thing} was gone.",
            "Suddenly {hero} saw that the {thing} was gone.",
            "Then {he} noticed that the {thing} was missing.",
        ),
    ]
    search = [
        c.say(
            "{hero} looked everywhere, but {he} could not find it.",
            "{He} searched for an hour and found nothing.",
            "{He} began to cry.",
        ),
        met(c),
        c.say(
            '"Why are you so sad?" asked {friend}.',
            '"Can I help you?" asked {friend}.',
            '"What is wrong?" asked {friend}.',
        ),
        c.say('"I have lost my {thing}," said {hero}.', '"My {colour} {thing} is gone," said {hero}.'),
        c.say(
            "Together they looked again, and at last they found the {thing} {spot}.",
            "{friend} had good eyes and found the {thing} {spot}.",
            "They searched together, and soon {friend} saw the {thing} {spot}.",
        ),
    ]
    qa = [
        (
            ["What did {hero} lose?", "What was lost in the story?", "Which thing did {hero} lose?"],
            "{hero} lost a {colour} {thing}.",
            "A {colour} {thing}.",
        ),
        (
            ["Where was the {thing}?", "Where did they find the {thing}?", "Where was the {thing} found?"],
            "The {thing} was {spot}.",
            "{Spot}.",
        ),
        (
            ["What colour was the {thing}?", "Which colour did the {thing} have?"],
            "The {thing} was {colour}.",
            "{Colour}.",
        ),
        (
            ["Where did {hero} lose the {thing}?", "Where did {hero} go with the {thing}?"],
            "{hero} went to {place} with the {thing}.",
            "To {place}.",
        ),
        *helper_questions(),
    ]
    return (
        [body, search],
        qa,
        "{hero} lost a {colour} {thing} and {friend} helped to find it {spot}.",
        "The Lost {Thing}",
        "loses {a_thing}",
    )


def fear(c: Cast):
    fear = c.rng.choice(FEARS)
    body = [
        c.say("{hero} was afraid of {fear}.", "There was only one problem: {hero} was afraid of {fear}.", fear=fear),
        c.say(
            "{time} {he} had to go to {place} alone.",
            "{time} {his} mother sent {him} to {place}.",
            "{time} {he} was on the way to {place}.",
        ),
        *weather(c),
        c.say("{His} knees shook.", "{His} heart beat fast.", "{He} did not dare to move."),
    ]
    rest = [
        met(c),
        c.say(
            '"I am with you," said {friend}.',
            '"Take my hand," said {friend}.',
            '"Sing a song, that always helps me," said {friend}.',
        ),
        c.say(
            "They walked on together, step by step.",
            "{hero} took a deep breath and went on.",
            "Slowly they went on side by side.",
        ),
        c.say(
            "Soon {hero} was no longer afraid of {fear}.",
            "After that day {hero} was not afraid of {fear} any more.",
            fear=fear,
        ),
    ]
    qa = [
        (
            ["What was {hero} afraid of?", "What did {hero} fear?"],
            "{hero} was afraid of %s." % fear,
            fear[0].upper() + fear[1:] + ".",
        ),
        (["Where did {hero} go?", "Where did {hero} have to go?"], "{hero} went to {place}.", "To {place}."),
        *helper_questions(),
    ]
    return (
        [body, rest],
        qa,
        "{hero} was afraid of %s until {friend} helped." % fear,
        "{hero} Is Brave",
        "is afraid of " + fear,
    )


def share(c: Cast):
    goods, n = c.rng.choice(GOODS), c.rng.randint(4, 15)
    given = c.rng.randint(2, n - 2)
    words = world.number_words
    body = [
        c.say(
            "{time} {hero} had a basket with {n} {goods}.",
            "{time} {hero} carried {n} {goods} in a basket.",
            n=words(n),
            goods=goods,
        ),
        c.say(
            "{He} wanted to eat them all at {place}.",
            "{He} was on the way to {place}.",
            "{He} sat down to eat at {place}.",
        ),
        *weather(c),
        met(c),
        c.say(
            '"I am so hungry," said {friend}.',
            '"I have not eaten since yesterday," said {friend}.',
            '"May I have some, please?" asked {friend}.',
        ),
    ]
    rest = [
        c.say(
            "{hero} thought for a moment and gave {friend} {given} {goods}.",
            "So {hero} gave {friend} {given} of the {goods}.",
            given=words(given),
            goods=goods,
        ),
        c.say(
            "Now {hero} had {left} {goods} left.",
            "{left} {goods} were left for {hero}.",
            left=words(n - given),
            goods=goods,
        ),
        c.say(
            "They ate together and told each other jokes.",
            "They sat in the grass and ate.",
            '"Thank you," said {friend} with a smile.',
        ),
    ]
    qa = [
        (
            ["How many {goods} did {hero} have at first?", "How many {goods} were in the basket?"],
            "{hero} had %s {goods} at first." % words(n),
            words(n).capitalize() + ".",
        ),
        (
            ["How many {goods} did {hero} give away?", "How many {goods} did {friend} get?"],
            "{hero} gave {friend} %s {goods}." % words(given),
            words(given).capitalize() + ".",
        ),
        (
            ["How many {goods} were left?", "How many {goods} did {hero} have left?"],
            "{hero} had %s {goods} left." % words(n - given),
            words(n - given).capitalize() + ".",
        ),
        (["What was in the basket?", "What did {hero} share?"], "There were {goods} in the basket.", "{goods}."),
        (["Who was hungry?", "Who got some of the {goods}?"], "{friend} was hungry.", "{friend}."),
        helper_questions()[1],
    ]
    qa = [
        (
            [q.replace("{goods}", goods) for q in qs],
            a.replace("{goods}", goods),
            s.replace("{goods}", goods.capitalize()),
        )
        for qs, a, s in qa
    ]
    return (
        [body, rest],
        qa,
        "{hero} shared %s with {friend}." % goods,
        "The Basket of " + goods.capitalize(),
        "shares " + goods,
    )


def race(c: Cast):
    finish = c.rng.choice(["the old oak", "the well", "the bridge", "the gate", "the mill", "the tower"])
    why = c.rng.choice(
        ["stopped to eat", "took a nap", "took the wrong path", "laughed too much", "looked back all the time"]
    )
    body = [
        c.say("{time} {hero} met {a_friend} named {friend} at {place}.", a_friend=with_article(c.friend_kind)),
        c.say(
            '"I am faster than you," said {friend}.',
            '"Nobody is faster than I am," said {friend}.',
            '"You are far too slow for me," said {friend}.',
        ),
        c.say(
            '"Then let us race to {finish}," said {hero}.',
            '"We shall see," said {hero}. "Let us run to {finish}."',
            finish=finish,
        ),
        *weather(c),
    ]
    rest = [
        c.say(
            "{friend} ran ahead at once, but then {friend} {why}.",
            "At first {friend} was in front, but then {friend} {why}.",
            why=why,
        ),
        c.say("{hero} ran on without a break.", "{hero} kept a steady pace.", "{hero} did not stop once."),
        c.say("So {hero} won the race.", "{hero} reached {finish} first and won the race.", finish=finish),
        c.say(
            '"Well done," said {friend}.',
            "{friend} laughed and shook {hero}'s hand.",
            "The next day they raced again, just for fun.",
        ),
    ]
    qa = [
        (["Who won the race?", "Who was first?", "Who won?"], "{hero} won the race.", "{hero}."),
        (["Who lost the race?", "Who was second?"], "{friend} lost the race.", "{friend}."),
        (
            ["Why did {friend} lose?", "Why did {friend} not win?"],
            "{friend} lost because {friend} %s." % why,
            "{friend} %s." % why,
        ),
        (
            ["Where did they race to?", "Where was the end of the race?", "Where did the race end?"],
            "They raced to %s." % finish,
            "To %s." % finish,
        ),
        helper_questions()[1],
    ]
    return [body, rest], qa, "{hero} won a race against {friend}.", "The Race to " + finish[4:].title(), "wins a race"


def treasure(c: Cast):
    steps = c.rng.randint(3, 40)
    inside = c.rng.choice(
        [
            "gold coins",
            "old letters",
            "silver spoons",
            "glass marbles",
            "a golden ring",
            "a book of songs",
            "a box of seeds",
            "a note that said hello",
        ]
    )
    body = [
        c.say("{time} {hero} found a map {spot}.", "{time} an old map fell out of a book, and {hero} picked it up."),
        c.say("The map showed a way to {place}.", "A thin {colour} line on it led to {place}."),
        c.say(
            "{hero} asked {friend} the {friend_kind} to come along.",
            '"Come with me," said {hero} to {friend} the {friend_kind}.',
        ),
        *weather(c),
    ]
    rest = [
        c.say(
            "At {place} they counted {steps} steps and began to dig.",
            "They walked {steps} steps from {place} and dug a hole.",
            steps=steps,
        ),
        c.say(
            "Soon they hit something hard.",
            "The earth was hard, but they did not stop.",
            "{friend} dug and {hero} held the lamp.",
        ),
        c.say(
            "It was a {colour} chest, and inside there was a treasure: {inside}.",
            "They pulled out a {colour} chest and found {inside} in it.",
            inside=inside,
        ),
        c.say(
            "They shared everything.",
            '"This was worth the walk," said {friend}.',
            "They carried it home and laughed all the way.",
        ),
    ]
    qa = [
        (
            ["What was in the chest?", "What did they find in the chest?", "What was the treasure?"],
            "There was %s in the chest." % inside
            if inside.startswith("a ")
            else "There were %s in the chest." % inside,
            inside[0].upper() + inside[1:] + ".",
        ),
        (
            ["How many steps did they count?", "How many steps did they walk?"],
            "They counted %d steps." % steps,
            "%d steps." % steps,
        ),
        (["What colour was the chest?", "Which colour did the chest have?"], "The chest was {colour}.", "{Colour}."),
        (["Where did the map lead?", "Where did they dig?"], "The map led to {place}.", "To {place}."),
        (["Who went along with {hero}?", "Who came with {hero}?"], "{friend} went along with {hero}.", "{friend}."),
        helper_questions()[1],
    ]
    return (
        [body, rest],
        qa,
        "{hero} and {friend} followed a map and found %s in a {colour} chest." % inside,
        "The Old Map",
        "finds a treasure",
    )


def rescue(c: Cast):
    animal = c.rng.choice([a for a in world.ANIMALS if a not in (c.kind, c.friend_kind)])
    trap = c.rng.choice(
        [
            "had fallen into a well",
            "was stuck in a fence",
            "was caught in a net",
            "sat high in a tree",
            "had lost its way",
            "was lying in the snow",
        ]
    )
    body = [
        c.say("{time} {hero} heard a soft cry near {place}.", "{time} {hero} walked past {place} and heard a cry."),
        *weather(c),
        c.say(
            "{young} {trap}.",
            "It was {young}, and it {trap}." if not trap.startswith("sat") else "It was {young} that {trap}.",
            young=with_article("young " + animal),
            trap=trap,
        ),
        c.say(
            "{hero} was not strong enough to help alone.",
            "Alone {he} could do nothing.",
            '"Wait, I will get help," said {hero}.',
        ),
    ]
    rest = [
        c.say(
            "{He} ran and fetched {friend} the {friend_kind}.",
            "{friend} the {friend_kind} heard it too and came at once.",
        ),
        c.say(
            "With {a_thing} and a long rope they saved the {animal}.",
            "They used {a_thing} and saved the {animal}.",
            animal=animal,
            a_thing=with_article(c.thing),
        ),
        c.say(
            "They gave it water and something to eat.",
            "They named it {pet}.",
            "It followed {hero} home.",
            pet=c.rng.choice(["Dot", "Spot", "Button", "Pip", "Nut"]),
        ),
    ]
    qa = [
        (
            ["Which animal needed help?", "Which animal was saved?", "What animal did they save?"],
            "They saved a young %s." % animal,
            "A young %s." % animal,
        ),
        (
            ["What had happened to the %s?" % animal, "What was wrong with the %s?" % animal],
            "The %s %s." % (animal, trap),
            "It %s." % trap,
        ),
        (["Where did {hero} hear a cry?", "Where was the cry?"], "{hero} heard a cry near {place}.", "Near {place}."),
        (["What did they use to save it?", "Which thing did they use?"], "They used {a_thing}.", "{A_thing}."),
        *helper_questions(),
    ]
    return (
        [body, rest],
        qa,
        "{hero} and {friend} saved a young %s that %s." % (animal, trap),
        "The Young " + animal.capitalize(),
        "saves a young " + animal,
    )
