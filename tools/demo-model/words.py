"""Instructions about words and sentences: repeat, spell, upper case, replace, count, sort. Knows no facts."""

from random import Random

import cast
import world
from task import Task, ways
from world import listed, with_article

VERBS = listed("""sees|likes|paints|finds|carries|hides|buys|sells|cleans|needs|brings|draws|holds|keeps|shows|wants|loses|counts|opens|takes|
watches|makes|washes|forgets|remembers""")
WHEN = "every day|in the morning|at night|on Monday|on Friday|in winter|after school|before lunch|at noon|in the evening|today|again".split(
    "|"
)


def sentence(rng: Random) -> str:
    """A plain sentence from millions."""
    subject = (
        rng.choice(world.NAMES)
        if rng.random() < 0.6
        else f"the {rng.choice(cast.ADJECTIVES)} {rng.choice(list(world.ANIMALS) + cast.ROLES)}"
    )
    thing = rng.choice(
        [rng.choice(cast.THINGS), rng.choice(world.WORDS[::3]) if rng.random() < 0.1 else rng.choice(cast.THINGS)]
    )
    obj = rng.choice(
        [
            f"the {thing}",
            f"the {rng.choice(world.COLOURS)} {thing}",
            with_article(f"{rng.choice(world.COLOURS)} {thing}"),
            f"{rng.randint(2, 20)} {rng.choice(cast.GOODS)}",
        ]
    )
    tail = rng.choice(["", "", f" {rng.choice(WHEN)}", f" near {rng.choice(cast.PLACES)}"])
    text = f"{subject} {rng.choice(VERBS)} {obj}{tail}."
    return text[0].upper() + text[1:]


def gibberish(rng: Random) -> str:
    """Letters of many scripts, so that every byte of the vocabulary has been seen."""
    scripts = [
        (0x41, 0x5A),
        (0x61, 0x7A),
        (0x61, 0x7A),
        (0xC0, 0xFF),
        (0x391, 0x3C9),
        (0x410, 0x44F),
        (0x5D0, 0x5EA),
        (0x4E00, 0x9FFF),
        (0x3041, 0x3096),
        (0xAC00, 0xD7A3),
        (0x1F300, 0x1F64F),
        (0x21, 0x7E),
        (0x2190, 0x21FF),
        (0x100, 0x17F),
    ]
    low, high = rng.choice(scripts)
    return " ".join(
        "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(1, 3))
    )


def repeat(rng: Random) -> Task:
    roll = rng.random()
    if roll < 0.15:
        text = gibberish(rng)
    elif roll < 0.3:
        text = " ".join(rng.choice(world.WORDS) for _ in range(rng.randint(1, 5)))
    elif roll < 0.4:
        text = " ".join(cast.invented(rng).lower() for _ in range(rng.randint(1, 3)))
    elif roll < 0.55:
        text = sentence(rng)[:-1].lower()
    else:
        text = sentence(rng)
    _, q = ways(
        rng,
        [
            "Repeat this: {s}",
            "Repeat: {s}",
            "Say this again: {s}",
            "Repeat after me: {s}",
            "Copy this text: {s}",
            "Write this: {s}",
            "Please repeat: {s}",
        ],
        s=text,
    )
    return Task("repeating", q, text, ("repeat", text), loose=False)


def repeat_times(rng: Random) -> Task:
    n = rng.randint(2, 6)
    text = rng.choice(world.WORDS) if rng.random() < 0.5 else sentence(rng)
    shown = rng.choice([str(n), world.number_words(n)])
    i, q = ways(rng, ["Write {s} {n} times.", "Repeat {s} {n} times.", "Say {s} {n} times."], s=f'"{text}"', n=shown)
    return Task("repeating", q, " ".join([text] * n), ("times", text, n), loose=False)


def upper(rng: Random) -> Task:
    text = sentence(rng) if rng.random() < 0.5 else " ".join(rng.choice(world.WORDS) for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.7:
        _, q = ways(
            rng,
            [
                "Write this in upper case: {s}",
                "Upper case: {s}",
                "Put this in capital letters: {s}",
                "Rewrite in upper case: {s}",
                "Write in capitals: {s}",
            ],
            s=text,
        )
        return Task("upper and lower case", q, text.upper(), ("upper", text), loose=False)
    _, q = ways(
        rng,
        [
            "Write this in lower case: {s}",
            "Lower case: {s}",
            "Put this in small letters: {s}",
            "Rewrite in lower case: {s}",
        ],
        s=text.upper(),
    )
    return Task("upper and lower case", q, text.lower(), ("lower", text), loose=False)


def spell(rng: Random) -> Task:
    word = rng.choice(world.WORDS)
    roll = rng.random()
    quoted = rng.choice([word, word, f'"{word}"', f"the word {word}"])
    if roll < 0.5:
        i, q = ways(
            rng,
            [
                "Spell {w}.",
                "How do you spell {w}?",
                "Please spell {w}.",
                "Spell {w} letter by letter.",
                "Can you spell {w}?",
            ],
            w=quoted,
        )
        return Task("spelling", q, "-".join(word), ("spell", word, i))
    if roll < 0.65:
        i, q = ways(
            rng,
            ["How many letters are in {w}?", "How many letters does {w} have?", "Count the letters in {w}."],
            w=quoted,
        )
        return Task("letters", q, f"The word {word} has {len(word)} letters.", ("letters", word, i), str(len(word)))
    if roll < 0.8:
        i, q = ways(
            rng,
            [
                "What is the first letter of {w}?",
                "Which letter does {w} begin with?",
                "With which letter does {w} start?",
            ],
            w=quoted,
        )
        return Task("letters", q, f"The first letter of {word} is {word[0]}.", ("first", word, i), word[0])
    if roll < 0.9:
        i, q = ways(
            rng,
            ["What is the last letter of {w}?", "Which letter does {w} end with?", "With which letter does {w} end?"],
            w=quoted,
        )
        return Task("letters", q, f"The last letter of {word} is {word[-1]}.", ("last", word, i), word[-1])
    i, q = ways(rng, ["Write {w} backwards.", "Spell {w} backwards.", "Reverse {w}."], w=quoted)
    return Task("spelling", q, "-".join(reversed(word)), ("backwards", word, i))


def sort_words(rng: Random) -> Task:
    words = rng.sample(world.WORDS, rng.randint(2, 4))
    while len({w[0] for w in words}) < len(words):
        words = rng.sample(world.WORDS, len(words))
    _, q = ways(
        rng,
        [
            "Sort these words: {x}.",
            "Put these words in alphabetical order: {x}.",
            "Sort by alphabet: {x}",
            "Order these words from A to Z: {x}.",
        ],
        x=", ".join(words),
    )
    return Task("sorting words", q, ", ".join(sorted(words)), ("sort words", *words))


def pick_word(rng: Random) -> Task:
    text = sentence(rng)
    words = text.rstrip(".").split()
    roll = rng.random()
    if roll < 0.4:
        _, q = ways(
            rng,
            ["What is the first word of this sentence: {s}", "Which word comes first in: {s}", "First word of: {s}"],
            s=text,
        )
        return Task("picking words", q, words[0], ("first word", text), loose=False)
    if roll < 0.8:
        _, q = ways(
            rng,
            ["What is the last word of this sentence: {s}", "Which word comes last in: {s}", "Last word of: {s}"],
            s=text,
        )
        return Task("picking words", q, words[-1], ("last word", text), loose=False)
    _, q = ways(rng, ["How many words are in this sentence: {s}", "Count the words: {s}"], s=text)
    return Task(
        "picking words", q, f"The sentence has {len(words)} words.", ("count words", text), str(len(words)), loose=False
    )


def replace(rng: Random) -> Task:
    text = sentence(rng)
    words = text.rstrip(".").split()
    pools = [world.NAMES, world.COLOURS, cast.THINGS, cast.GOODS]
    # No word after "a" or "an": the article might have to change with it.
    after_article = {w for left, w in zip(words, words[1:]) if left.lower() in ("a", "an")}
    choices = [
        (w, pool) for w in words for pool in pools if w in pool and words.count(w) == 1 and w not in after_article
    ]
    if not choices:
        return replace(rng)
    old, pool = rng.choice(choices)
    new = rng.choice(pool)
    if new == old:
        return replace(rng)
    _, q = ways(
        rng,
        [
            "Replace {o} by {n}: {s}",
            "Replace {o} with {n}: {s}",
            "Change {o} to {n}: {s}",
            "Write {n} instead of {o}: {s}",
        ],
        o=old,
        n=new,
        s=text,
    )
    answer = " ".join(new if w == old else w for w in words) + "."
    return Task("replacing words", q, answer, ("replace", text, new), loose=False)


def make_sentence(rng: Random) -> Task:
    word = rng.choice(cast.THINGS)
    i, q = ways(
        rng,
        [
            "Write a sentence with the word {w}.",
            "Make a sentence with {w}.",
            "Use {w} in a sentence.",
            "Give me a sentence about {w}.",
        ],
        w=word,
    )
    while True:
        answer = sentence(rng)
        if f" {word} " in answer or answer.endswith(f" {word}."):
            break
        answer = f"{rng.choice(world.NAMES)} {rng.choice(VERBS)} the {rng.choice(world.COLOURS)} {word}{rng.choice(['', ' ' + rng.choice(WHEN)])}."
        break
    return Task(
        "sentences",
        q,
        answer,
        ("sentence", word, i),
        accept=lambda text: word in text and text.endswith(".") and 3 <= len(text.split()) <= 14,
    )


KINDS = [
    (repeat, 4),
    (repeat_times, 1.5),
    (upper, 3),
    (spell, 5),
    (sort_words, 3),
    (pick_word, 2.5),
    (replace, 2.5),
    (make_sentence, 1),
]
