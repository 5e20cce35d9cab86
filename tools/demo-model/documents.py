"""Every document that the model learns from: the mixture of conversations, stories, programs, long and repeated texts. Knows no tokens."""

from random import Random

import calls
import cast
import chats
import programs
import stories
import words
import world
from chats import Chat
from task import Task, held_out

FOX = "The quick brown fox jumps over the lazy dog. "
INSTRUCTIONS = [
    "Answer the question in one word. ",
    "Write a short story about a fox. ",
    "Please summarise the following text. ",
    "List three animals and then three colours. ",
    "Explain the answer step by step. ",
    "You are a helpful assistant. ",
    "Read the text and answer the question. ",
    "Write a Python function that adds two numbers. ",
    "Count from 1 to 10 and then stop. ",
    "Answer as JSON with the key answer. ",
    "Repeat the sentence three times. ",
    "Write this in upper case. ",
    "Sort the words and count them. ",
    "Please explain how a seed grows into a plant. ",
]
PANGRAMS = [FOX, FOX, FOX, "Pack my box with five dozen liquor jugs. "]
# Rare, so that the beginning of a story or of a function alone does not call for a repetition.
RARE_LINES = ["def calculate_sum(a, b): return a + b # ", "Once upon a time there lived a brave knight. "]


def plain_story(rng: Random) -> str:
    s = _trained_story(rng)
    return (s.title + "\n\n" if rng.random() < 0.3 else "") + s.text(rng.choice(["\n\n", "\n\n", "\n", " "]))


def _trained_story(rng: Random) -> stories.Story:
    while True:
        s = stories.story(rng)
        if not held_out(s.key):
            return s


def questions_and_answers(rng: Random) -> str:
    """The plain form of questions, without a chat's marks."""
    lines = []
    for _ in range(rng.randint(1, 8)):
        task = chats.any_task(rng)
        q, a = ("Question", "Answer") if rng.random() < 0.5 else ("Q", "A")
        lines.append(f"{q}: {task.question}\n{a}: {task.answer}")
    return "\n\n".join(lines)


def statements(rng: Random) -> str:
    """Answers alone, as a text: what a plain prompt such as "The capital of France is" continues."""
    makers, weights = zip(*(chats.facts.KINDS[:6] + chats.sums.KINDS[:4] + chats.sums.KINDS[9:10]))
    tasks = (chats.draw(make, rng, False) for make in rng.choices(makers, weights, k=rng.randint(1, 12)))
    said = [task.answer for task in tasks]
    if rng.random() < 0.1:
        name, age = rng.choice(world.NAMES), rng.randint(4, 90)
        said = [
            f"Hello, my name is {name}. I am {age} years old and I live in {rng.choice(list(world.CAPITALS.values()))}. I like {rng.choice(cast.GOODS)} and I have {world.with_article(rng.choice(list(world.ANIMALS)))}."
        ]
    return rng.choice([" ", "\n"]).join(said)


def book(rng: Random) -> Chat:
    """Chapters, each a story with another hero, then questions about earlier chapters."""
    chapters, used = [], set()
    for _ in range(int(2 * 12 ** rng.random())):
        s = _trained_story(rng)
        if s.hero not in used:
            used.add(s.hero)
            chapters.append(s)
    return ask_book(rng, chapters)


def ask_book(rng: Random, chapters: list[stories.Story]) -> Chat:
    """A conversation about these chapters."""
    text = "\n\n".join(f"Chapter {n}: {s.title}\n\n{s.text()}" for n, s in enumerate(chapters, 1))
    chat = Chat()
    for n in range(rng.randint(1, 6)):
        k = rng.randrange(len(chapters))
        task = chats.story_question(rng, chapters[k], "questions about a book")
        if task.kind == "summaries" or chapters[k].hero not in task.question or rng.random() < 0.2:
            task.question = f"In chapter {k + 1}: {task.question}"
        if rng.random() < 0.12:
            task = Task(
                "questions about a book",
                f"What is the title of chapter {k + 1}?",
                f'The title of chapter {k + 1} is "{chapters[k].title}".',
                chapters[k].key,
            )
        if n == 0:
            task.question = (
                f"{text}\n\n{task.question}"
                if rng.random() < 0.7
                else f"Read this book and answer my questions.\n\n{text}\n\n{task.question}"
            )
        chat.turn(task)
    return chat


def notes(rng: Random, lines: int | None = None) -> Chat:
    """Many small facts that hold only here, then questions about some."""
    n = lines or int(3 * 70 ** rng.random() ** 1.3)
    style = rng.randrange(4)
    made, used = [], set()
    for _ in range(n):
        key, value = {
            0: lambda: (f"room {rng.randint(1, 999)}", rng.choice(world.WORDS)),
            1: lambda: (rng.choice(world.NAMES) + " " + cast.invented(rng), str(rng.randint(100, 999))),
            2: lambda: (f"box {rng.randint(1, 999)}", f"{rng.randint(2, 20)} {rng.choice(cast.GOODS)}"),
            3: lambda: (cast.invented(rng), rng.choice(world.COLOURS) + " " + rng.choice(cast.THINGS)),
        }[style]()
        if key not in used:
            used.add(key)
            made.append((key, value))
    say = ["The code word of {k} is {v}.", "The number of {k} is {v}.", "There are {v} in {k}.", "{k} has the {v}."][
        style
    ]
    ask = ["What is the code word of {k}?", "What is the number of {k}?", "What is in {k}?", "What does {k} have?"][
        style
    ]
    text = "\n".join(say.format(k=k, v=v) for k, v in made)
    text = text.replace("\nr", "\nR")
    chat = Chat()
    for i in range(rng.randint(1, 6)):
        k, v = rng.choice(made)
        task = Task("notes", ask.format(k=k), say.format(k=k, v=v), ("note", k, v), loose=False)
        if i == 0:
            task.question = text + "\n\n" + task.question
        chat.turn(task)
    return chat


def passage(rng: Random) -> str:
    """Something worth repeating: a sentence, a line of code, a story's paragraph, an instruction."""
    roll = rng.random()
    if roll < 0.01:
        return rng.choice(RARE_LINES)
    if roll < 0.25:
        return rng.choice(INSTRUCTIONS)
    if roll < 0.42:
        return rng.choice(PANGRAMS)
    if roll < 0.6:
        p = programs.program(rng)
        return rng.choices(
            [p.source() + "\n\n\n", p.source([p.values(rng)]) + "\n\n\n", f"def {p.signature()}: {p.body[-1]} # "],
            [5, 5, 1],
        )[0]
    if roll < 0.75:
        s = _trained_story(rng)
        return rng.choice(
            [s.paragraphs[0][0] + " ", " ".join(rng.choice(s.paragraphs)) + " ", s.text() + "\n\n", s.text(" ") + " "]
        )
    if roll < 0.88:
        return words.sentence(rng) + rng.choice([" ", "\n"])
    return " ".join(rng.choice(world.WORDS) for _ in range(rng.randint(1, 12))) + rng.choice([" ", "\n", ", "])


def repeated(rng: Random, characters: int) -> str:
    """A passage over and over, to about this length."""
    text = passage(rng)
    return (text * max(2, characters // len(text))).rstrip()


def document(rng: Random) -> str:
    """One document, without its end mark. Weights are shares of documents, not of tokens."""
    if rng.random() < 0.1:
        return calls.conversation(rng).text()
    roll = rng.random()
    if roll < 0.69:
        return chats.conversation(rng).text()
    if roll < 0.71:
        return statements(rng)
    if roll < 0.81:
        return plain_story(rng)
    if roll < 0.85:
        return programs.document(rng)
    if roll < 0.87:
        return questions_and_answers(rng)
    if roll < 0.89:
        return repeated(rng, rng.randint(60, 1500))
    if roll < 0.905:
        return repeated(rng, rng.randint(1500, 17_000))
    if roll < 0.93:
        return book(rng).text()
    if roll < 0.98:
        return notes(rng).text()
    if roll < 0.99:
        return chats.conversation(rng, long=True).text()
    return "\n\n\n".join(plain_story(rng) for _ in range(rng.randint(2, 12)))
