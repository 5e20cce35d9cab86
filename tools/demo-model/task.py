"""What a question is, and which questions training never sees. Knows no kind of question and no chat format."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass
class Task:
    """A question with its answer. `short` is the answer in a word or two; `key` tells held-out questions from trained ones."""

    kind: str
    question: str
    answer: str
    key: tuple
    short: str | None = None
    # Where several answers are right: says whether a text is one of them.
    accept: Callable[[str], bool] | None = None
    # False where a changed letter or mark of the question would change the answer.
    loose: bool = True

    def right(self, text: str) -> bool:
        return self.accept(text) if self.accept else text == self.answer


def held_out(key: tuple) -> bool:
    """One key in forty is never trained on."""
    return zlib.crc32(repr(key).encode()) % 40 == 0


def draw(make: Callable[[Random], Task], rng: Random, want_held_out: bool) -> Task | None:
    """A task of the wanted side of the split; None where a kind has too few keys for one to be held out."""
    for _ in range(1000):
        task = make(rng)
        if held_out(task.key) == want_held_out:
            return task
    return None


def ways(rng: Random, options: list[str], **slots) -> tuple[int, str]:
    """One way to ask, with its number, which goes into the key."""
    index = rng.randrange(len(options))
    return index, options[index].format(**slots)


def vary(rng: Random, question: str) -> str:
    """The question as a hurried or a polite person writes it."""
    roll = rng.random()
    if roll < 0.55:
        return question
    if roll < 0.67:
        question = question[0].lower() + question[1:]
    elif roll < 0.75:
        question = question.lower()
    if rng.random() < 0.35 and question[-1] in "?.":
        return question[:-1]
    if rng.random() < 0.25 and question[-1] in "?.":
        return question[:-1] + rng.choice([", please" + question[-1], " please", "??" if question[-1] == "?" else "!"])
    if rng.random() < 0.15:
        return (
            rng.choice(["Please answer: ", "A question: ", "Tell me, ", "Hey, ", "Now tell me: ", "Next question: "])
            + question
        )
    return question
