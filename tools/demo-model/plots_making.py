"""Plots in which somebody makes or learns something. Knows nothing of how a story begins and ends.

Each gives paragraphs, questions, summary, title and what a request may say of it.
"""

import world
from cast import BUILDS, PLANTS, SKILLS, Cast, helper_questions, met, weather


def build(c: Cast):
    build = c.rng.choice(BUILDS)
    wrong = c.rng.choice(
        [
            "it fell apart",
            "the rope broke",
            "the wood was too short",
            "the rain washed it away",
            "the nails were too small",
            "it leaned to one side",
        ]
    )
    body = [
        c.say("{hero} wanted to build {build}.", "{He} had one great wish: {he} wanted to build {build}.", build=build),
        c.say(
            "{time} {he} began the work in {place}.",
            "{time} {he} carried everything to {place} and began.",
            "{time} {he} started to build it at {place}.",
        )
        if not c.place.startswith("the hill")
        else c.say("{time} {he} began the work on {place}."),
        *weather(c),
        c.say("But {wrong}.", "It went well at first, but then {wrong}.", "In the afternoon {wrong}.", wrong=wrong),
        c.say("{hero} sighed and sat down.", "{He} wanted to give up.", '"This will never work," said {hero}.'),
    ]
    rest = [
        met(c),
        c.say(
            '"Let us try it together," said {friend}.',
            '"I know how to do it," said {friend}.',
            '"Do not give up," said {friend}.',
        ),
        c.say(
            "They worked until sunset.",
            "They worked side by side for three days.",
            "{friend} held the wood and {hero} used the hammer.",
        ),
        c.say(
            "At last {build} stood there, strong and beautiful.",
            "When they were done, they looked at it with joy.",
            "Then it was finished, and it was perfect.",
            build=build,
        ),
    ]
    qa = [
        (
            ["What did {hero} want to build?", "What did {hero} build?", "What was built?"],
            "{hero} wanted to build %s." % build,
            build[0].upper() + build[1:] + ".",
        ),
        (
            ["Where did {hero} work?", "Where did {hero} begin the work?", "Where was it built?"],
            "{hero} worked at {place}.",
            "At {place}.",
        ),
        (
            ["What went wrong?", "What was the problem?", "Why did {hero} want to give up?"],
            "The problem was that %s." % wrong,
            wrong[0].upper() + wrong[1:] + ".",
        ),
        *helper_questions(),
    ]
    return (
        [body, rest],
        qa,
        "{hero} wanted to build %s, and with the help of {friend} it was finished." % build,
        "{hero} Builds " + build[0].upper() + build[1:],
        "builds " + build,
    )


def learn(c: Cast):
    skill = c.rng.choice(SKILLS)
    days = c.rng.randint(2, 12)
    body = [
        c.say(
            "{hero} wanted to learn to {skill}.", "More than anything {hero} wanted to learn to {skill}.", skill=skill
        ),
        c.say(
            "{time} {he} tried it for the first time at {place}.",
            "{time} {he} went to {place} and tried.",
            "{time} {he} practised at {place}.",
        ),
        c.say(
            "It did not go well at all.",
            "{He} failed again and again.",
            "{He} made one mistake after another.",
            "Everyone who saw it laughed.",
        ),
    ]
    rest = [
        met(c),
        c.say(
            '"I will show you," said {friend}.',
            '"You must begin slowly," said {friend}.',
            '"I could not do it at first either," said {friend}.',
        ),
        c.say(
            "They practised every day for {days} days.",
            "For {days} days they practised together.",
            days=world.number_words(days),
        ),
        c.say(
            "Then, at last, {hero} could {skill}.", "After that {hero} could {skill} better than anyone.", skill=skill
        ),
    ]
    qa = [
        (
            ["What did {hero} want to learn?", "What did {hero} learn?"],
            "{hero} wanted to learn to %s." % skill,
            "To %s." % skill,
        ),
        (
            ["How long did they practise?", "For how many days did they practise?"],
            "They practised for %s days." % world.number_words(days),
            "For %s days." % world.number_words(days),
        ),
        (
            ["Where did {hero} practise?", "Where did {hero} try it for the first time?"],
            "{hero} practised at {place}.",
            "At {place}.",
        ),
        *helper_questions(),
    ]
    return (
        [body, rest],
        qa,
        "{hero} learned to %s with the help of {friend}." % skill,
        "{hero} Learns to " + skill.capitalize(),
        c.rng.choice(["learns to ", "wants to learn to "]) + skill,
    )


def plant(c: Cast):
    plant, weeks = c.rng.choice(PLANTS), c.rng.randint(2, 9)
    danger = c.rng.choice(["a storm", "a hungry snail", "a dry week", "a cold night", "a flood", "a swarm of beetles"])
    body = [
        c.say(
            "{time} {hero} found a seed at {place}.",
            "{time} {hero} got a seed from {friend} the {friend_kind}.",
            "{time} {hero} bought a seed at {place}.",
        ),
        c.say(
            "{He} put it into the earth and gave it water every day.",
            "{He} planted it behind the house and watered it every morning.",
        ),
        c.say(
            "After {weeks} weeks a green leaf came out of the ground.",
            "For {weeks} weeks nothing happened, and then a green leaf came out.",
            weeks=world.number_words(weeks),
        ),
        c.say("But then {danger} came.", "One day {danger} came, and the plant almost died.", danger=danger),
    ]
    rest = [
        c.say(
            "{friend} the {friend_kind} helped {hero} to save it.",
            "{hero} called {friend} the {friend_kind}, and together they saved it.",
        ),
        c.say(
            "By the end of the year it had become {plant}.",
            "It grew and grew until it was {plant}.",
            "In the end it became {plant}, the finest in the land.",
            plant=plant,
        ),
    ]
    qa = [
        (
            ["What did the seed become?", "What did {hero} grow?", "What grew from the seed?"],
            "The seed became %s." % plant,
            plant[0].upper() + plant[1:] + ".",
        ),
        (
            ["How long did it take until a leaf came out?", "After how many weeks did a leaf come out?"],
            "It took %s weeks." % world.number_words(weeks),
            world.number_words(weeks).capitalize() + " weeks.",
        ),
        (
            ["What put the plant in danger?", "What almost killed the plant?"],
            "It was %s." % danger,
            danger[0].upper() + danger[1:] + ".",
        ),
        *helper_questions(),
    ]
    return (
        [body, rest],
        qa,
        "{hero} grew %s from a seed." % plant,
        "{hero} and the Seed",
        c.rng.choice(["finds a seed", "grows " + plant]),
    )


def gift(c: Cast):
    who = c.rng.choice(["grandmother", "grandfather", "mother", "father", "sister", "brother", "teacher", "neighbour"])
    body = [
        c.say(
            "The birthday of {his} {who} was near, and {hero} had no gift.",
            "{hero} needed a gift for {his} {who}.",
            who=who,
        ),
        c.say("{time} {he} went to {place} to look for one.", "{time} {he} looked for one at {place}."),
        *weather(c),
        c.say("Everything there was too dear.", "{He} had only two coins.", "{He} did not like anything there."),
    ]
    rest = [
        met(c),
        c.say('"Make something yourself," said {friend}.', '"The best gifts are made by hand," said {friend}.'),
        c.say("So {hero} made a {colour} {thing}, and {friend} helped.", "They went home and made a {colour} {thing}."),
        c.say('"This is the best gift of all," said {his} {who}.', "{His} {who} smiled and hugged {him}.", who=who),
    ]
    qa = [
        (
            ["Who was the gift for?", "For whom did {hero} need a gift?"],
            "The gift was for {hero}'s %s." % who,
            "For {hero}'s %s." % who,
        ),
        (
            ["What was the gift?", "What did {hero} make?", "What did {hero} give as a gift?"],
            "The gift was a {colour} {thing}.",
            "A {colour} {thing}.",
        ),
        (
            ["Where did {hero} look for a gift?", "Where did {hero} go?"],
            "{hero} looked for a gift at {place}.",
            "At {place}.",
        ),
        *helper_questions(),
    ]
    return (
        [body, rest],
        qa,
        "{hero} made a {colour} {thing} as a gift for {his} %s." % who,
        "A Gift for "
        + ("the Teacher" if who == "teacher" else "a Neighbour" if who == "neighbour" else who.capitalize()),
        "needs a gift",
    )


def cook(c: Cast):
    dish = c.rng.choice(["soup", "bread", "apple pie", "cake", "jam", "porridge", "stew", "pancakes"])
    wrong = c.rng.choice(["salt", "sand", "pepper", "mustard", "soap", "chalk"])
    right = c.rng.choice(["sugar", "flour", "butter", "milk", "honey"])
    body = [
        c.say(
            "{time} {hero} wanted to make {dish} for all the friends in the village.",
            "{time} {hero} stood in the kitchen and wanted to make {dish}.",
            dish=dish,
        ),
        c.say(
            "But by mistake {he} took {wrong} instead of {right}.",
            "{He} was in a hurry and took {wrong} instead of {right}.",
            wrong=wrong,
            right=right,
        ),
        c.say("The {dish} tasted terrible.", '"Oh no," cried {hero}.', "{hero} tasted it and made a face.", dish=dish),
    ]
    rest = [
        c.say(
            "{friend} the {friend_kind} came in and saw what had happened.",
            "Then {friend} the {friend_kind} knocked at the door.",
        ),
        c.say('"Let us begin again," said {friend}.', '"That can happen to anyone," said {friend}.'),
        c.say(
            "This time they read every label, and the {dish} was wonderful.",
            "They tried again with {right}, and now it was delicious.",
            dish=dish,
            right=right,
        ),
    ]
    qa = [
        (
            ["What did {hero} want to make?", "What did {hero} cook?"],
            "{hero} wanted to make %s." % dish,
            dish.capitalize() + ".",
        ),
        (
            ["What did {hero} take by mistake?", "Which mistake did {hero} make?", "What went wrong?"],
            "{hero} took %s instead of %s." % (wrong, right),
            "%s instead of %s." % (wrong.capitalize(), right),
        ),
        *helper_questions(),
    ]
    return (
        [body, rest],
        qa,
        "{hero} made %s with {friend} after taking %s instead of %s." % (dish, wrong, right),
        "{hero} Makes " + dish.capitalize(),
        "makes " + dish,
    )
