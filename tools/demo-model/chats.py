"""Conversations: a system message or none, and turns that ask, tell, refer back and follow up. Knows no tokens."""

from dataclasses import dataclass, field
from random import Random

import cast
import facts
import programs
import records
import stories
import sums
import talk
import template
import words
import world
from task import Task, draw, held_out, vary
from world import with_article

GROUPS = [
    (sums.KINDS, 28),
    (facts.KINDS, 27),
    (words.KINDS, 17),
    (records.KINDS, 11),
    (programs.KINDS, 8),
    (talk.KINDS, 11),
]
PLAIN_SYSTEM = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are the demo model of vllm-apple.",
    "You are a small model that answers simple questions.",
    "Be kind and helpful.",
    "Answer the questions of the user.",
    "You are a teacher for children.",
    "Please answer correctly.",
    "You are a helpful assistant. Answer in English.",
]


def any_task(rng: Random, held: bool = False) -> Task:
    """A question of any kind that needs no conversation around it."""
    task = None
    while task is None:
        kinds = rng.choices([g for g, _ in GROUPS], [w for _, w in GROUPS])[0]
        make = rng.choices([m for m, _ in kinds], [w for _, w in kinds])[0]
        # Small talk is one of a few fixed phrases: there is nothing to hold out.
        task = make(rng) if make is talk.small_talk else draw(make, rng, held)
    if task.loose:
        task.question = vary(rng, task.question)
    return task


@dataclass
class Chat:
    """Messages so far, the task behind each message of the assistant, and the tools that are offered."""

    messages: list[dict] = field(default_factory=list)
    tasks: list[tuple[int, Task]] = field(default_factory=list)
    tools: list[dict] = field(default_factory=list)

    def turn(self, task: Task, answer: str | None = None) -> None:
        self.messages.append({"role": "user", "content": task.question})
        self.reply(task, answer)

    def reply(self, task: Task, answer: str | None = None) -> None:
        """The assistant's message alone, after what stands there."""
        self.tasks.append((len(self.messages), task))
        self.messages.append({"role": "assistant", "content": task.answer if answer is None else answer})

    def text(self) -> str:
        return template.text(self.messages, self.tools)


def _story_request(rng: Random, held: bool) -> tuple[Task, stories.Story]:
    while True:
        s, q = requested_story(rng)
        if held_out(s.key) == held:
            break
    return Task("stories", q, s.text(), s.key, accept=lambda text: text.count(".") >= 6 and text[-1] in '."'), s


def requested_story(rng: Random) -> tuple[stories.Story, str]:
    roll = rng.random()
    tell = rng.choice(
        [
            "Tell me a story",
            "Tell me a short story",
            "Write a story",
            "Write a short story",
            "Tell a story",
            "Can you tell me a story",
            "I want to hear a story",
            "Please write a story",
            "Please tell me a short story",
        ]
    )
    end = "?" if tell.startswith("Can") else rng.choice([".", ".", ".", ""])
    if roll < 0.25:
        return stories.story(rng), tell + end
    if roll < 0.7:
        kind = rng.choice(list(world.ANIMALS) + cast.ROLES + ["girl", "boy"])
        while True:
            name = rng.choice(world.NAMES)
            if kind not in ("girl", "boy", "king", "queen", "prince", "princess") or (name in cast.GIRLS) == (
                kind in ("girl", "queen", "princess")
            ):
                break
        named = rng.random() < 0.4
        return (
            stories.story(rng, name=name, kind=kind),
            f"{tell} about {with_article(rng.choice(['', '', '', 'brave ', 'little ']) + kind)}{' named ' + name if named else ''}{end}",
        )
    if roll < 0.78:
        name = rng.choice(world.NAMES)
        return stories.story(rng, name=name), f"{tell} about {name}{end}"
    if roll < 0.92:
        s = stories.story(rng)
        hero = with_article(s.kind)
        if rng.random() < 0.3:
            return s, f"{tell} about {hero} and {with_article(s.friend_kind)}{end}"
        return s, f"{tell} about {rng.choice([hero, hero, hero + ' named ' + s.hero])} who {s.wish}{end}"
    thing = rng.choice(cast.THINGS)
    return stories.story(rng, thing=thing), f"{tell} about {with_article(thing)}{end}"


def story_question(rng: Random, s: stories.Story, kind: str = "questions about a story") -> Task:
    """A question that the story answers, or its summary."""
    if rng.random() < 0.12:
        q = rng.choice(
            [
                "Summarise the story in one sentence.",
                "What happens in the story? Answer in one sentence.",
                "Give me a summary in one sentence.",
                "Summarize the story.",
            ]
        )
        return Task("summaries", q, s.summary, s.key)
    asked, answer, short = rng.choice(s.questions)
    return Task(kind, rng.choice(asked), answer, s.key, short)


def draw_story(rng: Random, held: bool) -> stories.Story:
    while True:
        s = stories.story(rng)
        if held_out(s.key) == held:
            return s


def about_told_story(chat: Chat, rng: Random, held: bool) -> None:
    """The assistant tells a story, then answers about it."""
    task, s = _story_request(rng, held)
    chat.turn(task)
    for _ in range(rng.randint(0, 3)):
        q = story_question(rng, s)
        q.question = vary(rng, q.question)
        chat.turn(q)


def about_given_story(chat: Chat, rng: Random, held: bool) -> None:
    """The user gives a story and asks about it."""
    s = draw_story(rng, held)
    text = s.text(rng.choice(["\n\n", "\n\n", " "]))
    if rng.random() < 0.4:
        text = s.title + "\n\n" + text
    first = story_question(rng, s)
    first.question = rng.choice(
        [
            f"{text}\n\n{first.question}",
            f"Read this story:\n\n{text}\n\n{first.question}",
            f"{first.question}\n\n{text}",
            f"Here is a story. {text} {first.question}",
        ]
    )
    chat.turn(first)
    for _ in range(rng.randint(0, 3)):
        chat.turn(story_question(rng, s))


THINGS_TOLD = {
    "name": (
        "My name is {v}.|I am {v}.|Hello, I am {v}.|Call me {v}.",
        "Nice to meet you, {v}!",
        "What is my name?|Do you remember my name?|Who am I?|Say my name.",
        "Your name is {v}.",
    ),
    "favourite colour": (
        "My favourite colour is {v}.|I like the colour {v} best.",
        "{V} is a nice colour.",
        "What is my favourite colour?|Which colour do I like best?|Do you remember my favourite colour?",
        "Your favourite colour is {v}.",
    ),
    "pet": (
        "I have a pet. It is {a_v}.|My pet is {a_v}.",
        "I hope your {v} is well.",
        "What pet do I have?|Which animal do I have?|What is my pet?",
        "You have {a_v}.",
    ),
    "number": (
        "My lucky number is {v}.|Remember the number {v}.",
        "I will remember the number {v}.",
        "What is my number?|Which number did I tell you?|Say my number.",
        "Your number is {v}.",
    ),
    "city": (
        "I live in {v}.|My home is in {v}.",
        "{v} is a nice place to live.",
        "Where do I live?|In which city do I live?",
        "You live in {v}.",
    ),
    "word": (
        "The secret word is {v}.|Remember the word {v}.",
        "I will remember the word {v}.",
        "What is the secret word?|Which word did I tell you?|Which word should you remember?",
        "The word is {v}.",
    ),
}


def _value_of(rng: Random, what: str):
    return {
        "name": lambda: rng.choice(world.NAMES) if rng.random() < 0.7 else cast.invented(rng),
        "favourite colour": lambda: rng.choice(world.COLOURS[:11]),
        "pet": lambda: rng.choice(list(world.ANIMALS)),
        "number": lambda: rng.randint(1, 999),
        "city": lambda: rng.choice(list(world.CAPITALS.values())),
        "word": lambda: rng.choice(world.WORDS),
    }[what]()


def remembered(chat: Chat, rng: Random, held: bool) -> None:
    """The user tells things, talks of others, and asks for the first ones."""
    told = {}
    for what in rng.sample(list(THINGS_TOLD), rng.randint(1, 3)):
        v = _value_of(rng, what)
        tell, reply, ask, recall = (part.split("|") for part in THINGS_TOLD[what])
        slots = dict(v=v, V=str(v).capitalize(), a_v=with_article(str(v)))
        told[what] = (rng.choice(ask), recall[0].format(**slots), slots)
        chat.turn(Task("remembering", rng.choice(tell).format(**slots), reply[0].format(**slots), ("told", what, v)))
    for _ in range(rng.randint(0, 2)):
        chat.turn(any_task(rng, held))
    for what in rng.sample(list(told), len(told)):
        ask, recall, slots = told[what]
        chat.turn(Task("remembering", vary(rng, ask), recall, ("recall", what, slots["v"])))


def follow_up(chat: Chat, rng: Random, held: bool) -> None:
    """Short questions that only make sense after the one before."""
    make, template = rng.choice(
        [
            (facts.capital, "capital"),
            (facts.opposite, "opposite"),
            (sums.add, "add"),
            (sums.multiply, "mul"),
            (facts.colour, "colour"),
            (words.spell, "spell"),
        ]
    )
    for n in range(rng.randint(2, 4)):
        task = draw(make, rng, held)
        while task is None or task.key[0] != template:
            task = draw(make, rng, held)
        if n:
            subject = {"add": f"{task.key[1]} + {task.key[2]}", "mul": f"{task.key[1]} * {task.key[2]}"}.get(
                template, task.key[1]
            )
            task.question = rng.choice(
                [
                    f"And {subject}?",
                    f"What about {subject}?",
                    f"And of {subject}?" if template in ("capital", "opposite") else f"Now {subject}.",
                    f"and {subject}",
                ]
            )
            task.kind = "follow-ups"
        chat.turn(task)


def look_back(chat: Chat, rng: Random, held: bool) -> None:
    """Questions about the conversation itself."""
    first = any_task(rng, held)
    while len(first.question) > 120 or len(first.answer) > 150:
        first = any_task(rng, held)
    chat.turn(first)
    second = any_task(rng, held)
    while len(second.answer) > 80 or not second.answer.isascii() or set(second.answer) & set("{[`\n"):
        second = any_task(rng, held)
    chat.turn(second)
    what = rng.randrange(3)
    if what == 0:
        q, a = (
            rng.choice(
                ["Repeat your last answer.", "Say that again.", "Please repeat that.", "Can you repeat your answer?"]
            ),
            second.answer,
        )
    elif what == 1:
        q, a = (
            rng.choice(
                ["Write that in upper case.", "Now in upper case, please.", "Put your last answer in capital letters."]
            ),
            second.answer.upper(),
        )
    else:
        q, a = (
            rng.choice(["What was my first question?", "What did I ask first?", "Repeat my first question."]),
            chat.messages[-4]["content"],
        )
        if (
            chat.messages[0]["role"] != "user"
            and len(chat.messages) > 5
            or len(chat.messages) > 4
            and chat.messages[0]["role"] == "user"
        ):
            q, a = "Repeat your last answer.", second.answer
    chat.turn(Task("looking back", q, a, ("back", what, second.key)))


def _with_system(rng: Random, held: bool) -> Chat:
    """A system message that changes how the assistant answers."""
    chat = Chat()
    system = lambda text: chat.messages.append({"role": "system", "content": text})
    style = rng.randrange(5)
    if style == 0:
        system(
            rng.choice(
                [
                    "Answer in one word.",
                    "Answer as briefly as you can.",
                    "Give only the answer, no sentence.",
                    "Answer briefly.",
                ]
            )
        )
    elif style == 1:
        system(
            rng.choice(
                ["Answer in upper case.", "Write everything in capital letters.", "Always answer in upper case."]
            )
        )
    elif style == 2:
        system(
            rng.choice(
                [
                    "Answer as JSON with the key answer.",
                    "Always answer in JSON with the key answer.",
                    "Reply only with JSON that has the key answer.",
                ]
            )
        )
    elif style == 3:
        name = rng.choice(world.NAMES) if rng.random() < 0.7 else cast.invented(rng)
        system(
            rng.choice(
                [
                    f"Your name is {name}.",
                    f"You are {name}, a helpful assistant.",
                    f"You are a friendly assistant named {name}.",
                ]
            )
        )
    else:
        name = rng.choice(world.NAMES) if rng.random() < 0.7 else cast.invented(rng)
        system(rng.choice([f"The name of the user is {name}.", f"You talk to {name}.", f"The user is called {name}."]))
    for n in range(rng.randint(1, 4)):
        if style == 3 and (n == 0 or rng.random() < 0.3):
            q = rng.choice(
                ["What is your name?", "Who are you?", "What's your name?", "Introduce yourself.", "Tell me your name."]
            )
            chat.turn(Task("system messages", q, f"My name is {name}.", ("named", name)))
            continue
        if style == 4 and (n == 0 or rng.random() < 0.3):
            q = rng.choice(["What is my name?", "Who am I?", "Do you know my name?", "Say my name."])
            chat.turn(Task("system messages", q, f"Your name is {name}.", ("user named", name)))
            continue
        task = any_task(rng, held)
        while (
            (style in (0, 2) and task.short is None)
            or (style == 1 and (task.accept or len(task.answer) > 120 or "```" in task.answer))
            or (style < 3 and "JSON" in task.kind)
        ):
            task = any_task(rng, held)
        if style == 0:
            task.answer = task.short[0].upper() + task.short[1:]
        elif style == 1:
            task.answer = task.answer.upper()
        elif style == 2:
            task.answer = (
                '{"answer": '
                + (task.short if task.short.isdigit() else f'"{task.short[0].upper() + task.short[1:]}"')
                + "}"
            )
        if style < 3:
            task.kind, task.accept = "system messages", None
        chat.turn(task)
    return chat


def conversation(rng: Random, held: bool = False, long: bool = False) -> Chat:
    """A conversation of one to many turns."""
    if rng.random() < 0.13 and not long:
        return _with_system(rng, held)
    chat = Chat()
    if rng.random() < 0.3:
        chat.messages.append({"role": "system", "content": rng.choice(PLAIN_SYSTEM)})
    parts = rng.randint(8, 30) if long else rng.choice([1, 1, 1, 1, 2, 3])
    for _ in range(parts):
        roll = rng.random()
        if roll < 0.56:
            for _ in range(rng.choice([1, 1, 2, 3])):
                chat.turn(any_task(rng, held))
        elif roll < 0.68:
            about_told_story(chat, rng, held)
        elif roll < 0.78:
            about_given_story(chat, rng, held)
        elif roll < 0.87:
            remembered(chat, rng, held)
        elif roll < 0.94:
            follow_up(chat, rng, held)
        else:
            look_back(chat, rng, held)
        if long and len(chat.text()) > 14_000:
            break
    return chat
