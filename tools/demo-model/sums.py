"""Questions about numbers: sums, products, comparing, counting, sorting, number words. Knows no words but these."""

from random import Random

import world
from task import Task, ways

ADD = [
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "How much is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} =",
    "Calculate {a} + {b}.",
    "What is the sum of {a} and {b}?",
    "What's {a} + {b}?",
    "What is {a}+{b}?",
    "Compute {a} plus {b}.",
    "{a} plus {b}?",
]
SUB = [
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "How much is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} =",
    "Calculate {a} - {b}.",
    "What is the difference of {a} and {b}?",
    "What's {a} - {b}?",
    "Take {b} away from {a}.",
    "{a} minus {b}?",
]
MUL = [
    "What is {a} * {b}?",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "How much is {a} times {b}?",
    "{a} * {b}",
    "{a}*{b}",
    "{a} x {b}",
    "Calculate {a} * {b}.",
    "What is the product of {a} and {b}?",
    "What's {a} times {b}?",
    "What is {a} x {b}?",
]
DIV = [
    "What is {a} / {b}?",
    "What is {a} divided by {b}?",
    "Divide {a} by {b}.",
    "How much is {a} / {b}?",
    "{a} / {b}",
    "{a}/{b}",
    "Calculate {a} / {b}.",
]


def _operand(rng: Random) -> int:
    return rng.randint(0, 20) if rng.random() < 0.35 else rng.randint(0, 99)


def add(rng: Random) -> Task:
    a, b = _operand(rng), _operand(rng)
    _, q = ways(rng, ADD, a=a, b=b)
    return Task("sum", q, f"{a} + {b} = {a + b}.", ("add", a, b), str(a + b))


def subtract(rng: Random) -> Task:
    a, b = sorted((_operand(rng), _operand(rng)), reverse=True)
    _, q = ways(rng, SUB, a=a, b=b)
    return Task("difference", q, f"{a} - {b} = {a - b}.", ("sub", a, b), str(a - b))


def multiply(rng: Random) -> Task:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    i, q = ways(rng, MUL, a=a, b=b)
    return Task("product", q, f"{a} * {b} = {a * b}.", ("mul", a, b, i), str(a * b))


def divide(rng: Random) -> Task:
    b, c = rng.randint(1, 12), rng.randint(0, 12)
    i, q = ways(rng, DIV, a=b * c, b=b)
    return Task("quotient", q, f"{b * c} / {b} = {c}.", ("div", b, c, i), str(c))


def word_problem(rng: Random) -> Task:
    name, goods = (
        rng.choice(world.NAMES),
        rng.choice("apples pears nuts eggs books coins stones cards pencils marbles buns shells".split()),
    )
    if rng.random() < 0.5:
        a, b = rng.randint(1, 30), rng.randint(1, 30)
        _, q = ways(
            rng,
            [
                "{n} has {a} {g} and gets {b} more. How many {g} does {n} have now?",
                "{n} had {a} {g}. Then {n} found {b} more. How many {g} does {n} have now?",
                "There are {a} {g} in a basket, and {n} puts {b} more into it. How many {g} does {n} have now?",
            ],
            n=name,
            a=a,
            b=b,
            g=goods,
        )
        return Task("word problem", q, f"{name} has {a + b} {goods} now.", ("word", "add", a, b), str(a + b))
    a, b = sorted((rng.randint(1, 40), rng.randint(1, 40)), reverse=True)
    _, q = ways(
        rng,
        [
            "{n} has {a} {g} and gives away {b}. How many {g} are left?",
            "{n} had {a} {g}. Then {n} lost {b} of them. How many {g} are left?",
            "{n} has {a} {g} and eats {b}. How many {g} are left?"
            if goods in ("apples", "pears", "nuts", "eggs", "buns")
            else "{n} has {a} {g} and sells {b}. How many {g} are left?",
        ],
        n=name,
        a=a,
        b=b,
        g=goods,
    )
    return Task("word problem", q, f"{a - b} {goods} are left.", ("word", "sub", a, b), str(a - b))


def compare(rng: Random) -> Task:
    top = rng.choice([20, 100, 1000])
    a, b = rng.sample(range(top), 2)
    if rng.random() < 0.5:
        i, q = ways(
            rng,
            [
                "Which is larger, {a} or {b}?",
                "Which number is greater: {a} or {b}?",
                "What is more, {a} or {b}?",
                "Which is bigger, {a} or {b}?",
            ],
            a=a,
            b=b,
        )
        return Task("comparison", q, f"{max(a, b)} is larger than {min(a, b)}.", ("larger", a, b), str(max(a, b)))
    i, q = ways(
        rng,
        ["Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?", "What is less, {a} or {b}?"],
        a=a,
        b=b,
    )
    return Task("comparison", q, f"{min(a, b)} is smaller than {max(a, b)}.", ("smaller", a, b), str(min(a, b)))


def neighbour(rng: Random) -> Task:
    n = rng.randint(1, 998)
    if rng.random() < 0.5:
        _, q = ways(
            rng,
            [
                "What number comes after {n}?",
                "Which number comes after {n}?",
                "What comes after {n}?",
                "What is the next number after {n}?",
            ],
            n=n,
        )
        return Task("next number", q, f"After {n} comes {n + 1}.", ("after", n), str(n + 1))
    _, q = ways(rng, ["What number comes before {n}?", "Which number comes before {n}?", "What comes before {n}?"], n=n)
    return Task("next number", q, f"Before {n} comes {n - 1}.", ("before", n), str(n - 1))


def parity(rng: Random) -> Task:
    n = rng.randint(0, 999)
    word = "odd" if n % 2 else "even"
    _, q = ways(rng, ["Is {n} even or odd?", "Is {n} odd or even?", "Is the number {n} even or odd?"], n=n)
    return Task("even or odd", q, f"{n} is {word}.", ("parity", n), word.capitalize())


def double(rng: Random) -> Task:
    n = rng.randint(1, 50)
    if rng.random() < 0.5:
        i, q = ways(
            rng, ["What is double {n}?", "Double {n}.", "What is twice {n}?", "How much is two times {n}?"], n=n
        )
        return Task("double and half", q, f"Twice {n} is {2 * n}.", ("double", n, i), str(2 * n))
    i, q = ways(
        rng, ["What is half of {n}?", "Halve {n}.", "How much is half of {n}?", "What is {n} divided by two?"], n=2 * n
    )
    return Task("double and half", q, f"Half of {2 * n} is {n}.", ("half", n, i), str(n))


def count(rng: Random) -> Task:
    roll = rng.random()
    if roll < 0.4:
        a = rng.choice([1, 1, rng.randint(0, 90)])
        b = a + rng.randint(2, 19)
        options = [
            "Count from {a} to {b}.",
            "Please count from {a} to {b}.",
            "Write the numbers from {a} to {b}.",
            "List the numbers from {a} to {b}.",
        ]
        _, q = ways(rng, options + (["Count to {b}.", "Please count to {b}."] if a == 1 else []), a=a, b=b)
        return Task("counting", q, ", ".join(map(str, range(a, b + 1))), ("count", a, b))
    if roll < 0.7:
        b = rng.randint(0, 80)
        a = b + rng.randint(2, 19)
        _, q = ways(
            rng,
            ["Count down from {a} to {b}.", "Count backwards from {a} to {b}.", "Please count down from {a} to {b}."],
            a=a,
            b=b,
        )
        return Task("counting", q, ", ".join(map(str, range(a, b - 1, -1))), ("down", a, b))
    step = rng.choice([2, 3, 4, 5, 10, 20])
    a = rng.choice([0, step, rng.randint(0, 20)])
    b = a + step * rng.randint(3, 10)
    _, q = ways(
        rng,
        [
            "Count by {s} from {a} to {b}.",
            "Count from {a} to {b} in steps of {s}.",
            "Count from {a} to {b} by {s}.",
            "Count in steps of {s} from {a} to {b}.",
        ],
        a=a,
        b=b,
        s=step,
    )
    return Task("counting", q, ", ".join(map(str, range(a, b + 1, step))), ("steps", a, b, step))


def sort(rng: Random) -> Task:
    numbers = rng.sample(range(rng.choice([10, 100])), rng.randint(3, 6))
    shown = ", ".join(map(str, numbers))
    if rng.random() < 0.65:
        _, q = ways(
            rng,
            [
                "Sort these numbers: {x}.",
                "Sort the numbers {x}.",
                "Put these numbers in order: {x}.",
                "Sort {x} from small to large.",
                "Sort: {x}",
            ],
            x=shown,
        )
        return Task("sorting numbers", q, ", ".join(map(str, sorted(numbers))), ("sort", *numbers))
    _, q = ways(
        rng,
        [
            "Sort these numbers from large to small: {x}.",
            "Sort {x} from large to small.",
            "Sort in descending order: {x}.",
        ],
        x=shown,
    )
    return Task("sorting numbers", q, ", ".join(map(str, sorted(numbers, reverse=True))), ("sort down", *numbers))


def extreme(rng: Random) -> Task:
    numbers = rng.sample(range(rng.choice([10, 100])), rng.randint(3, 6))
    shown = ", ".join(map(str, numbers))
    if rng.random() < 0.5:
        _, q = ways(
            rng,
            [
                "Which is the largest of these numbers: {x}?",
                "What is the largest number in {x}?",
                "Find the largest of {x}.",
                "What is the maximum of {x}?",
            ],
            x=shown,
        )
        return Task(
            "largest and smallest", q, f"The largest number is {max(numbers)}.", ("max", *numbers), str(max(numbers))
        )
    _, q = ways(
        rng,
        [
            "Which is the smallest of these numbers: {x}?",
            "What is the smallest number in {x}?",
            "Find the smallest of {x}.",
            "What is the minimum of {x}?",
        ],
        x=shown,
    )
    return Task(
        "largest and smallest", q, f"The smallest number is {min(numbers)}.", ("min", *numbers), str(min(numbers))
    )


def in_words(rng: Random) -> Task:
    n = rng.randint(0, 100)
    word = world.number_words(n)
    if rng.random() < 0.5:
        i, q = ways(
            rng,
            [
                "Write {n} in words.",
                "How do you write {n} in words?",
                "Write the number {n} as a word.",
                "Spell out {n}.",
            ],
            n=n,
        )
        return Task("number words", q, f"{n} in words is {word}.", ("words", n, i), word)
    i, q = ways(
        rng,
        ["Write {n} in digits.", "Write {n} as a number.", "Which number is {n}?", "What is {n} in digits?"],
        n=word,
    )
    return Task("number words", q, f"{word.capitalize()} is {n}.", ("digits", n, i), str(n))


def pattern(rng: Random) -> Task:
    start, step, n = rng.randint(0, 30), rng.choice([1, 2, 3, 4, 5, 10]), rng.randint(3, 5)
    series = [start + step * k for k in range(n + 1)]
    shown = ", ".join(map(str, series[:-1]))
    _, q = ways(
        rng,
        [
            "What comes next: {x}?",
            "Continue: {x}",
            "Which number comes next: {x}?",
            "What is the next number: {x}, ...?",
        ],
        x=shown,
    )
    return Task("series", q, f"The next number is {series[-1]}.", ("series", start, step, n), str(series[-1]))


# (maker, weight)
KINDS = [
    (add, 6),
    (subtract, 5),
    (multiply, 4),
    (divide, 2),
    (word_problem, 4),
    (compare, 2),
    (neighbour, 1),
    (parity, 1),
    (double, 1.5),
    (count, 3),
    (sort, 3),
    (extreme, 2),
    (in_words, 2),
    (pattern, 2),
]
