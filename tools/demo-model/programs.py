"""Small Python functions with docstrings and examples whose results were computed by running them. Knows no chat format."""

from dataclasses import dataclass
from random import Random

import world
from task import Task, ways

NUMBER, WORD, LIST, WORDS = "number", "word", "list", "words"


@dataclass
class Function:
    """A function before its names are chosen: `{a}` and `{b}` are the parameters, `{k}` a constant, `{f}` the function's name."""

    names: list[str]
    does: str
    kinds: list[str]
    lines: list[str]
    constants: list = None


FUNCTIONS = [
    Function(["add", "add_two", "total", "plus"], "adds {a} and {b}", [NUMBER, NUMBER], ["return {a} + {b}"]),
    Function(["subtract", "minus", "difference"], "subtracts {b} from {a}", [NUMBER, NUMBER], ["return {a} - {b}"]),
    Function(["multiply", "times", "product"], "multiplies {a} by {b}", [NUMBER, NUMBER], ["return {a} * {b}"]),
    Function(["add_{k}", "plus_{k}"], "adds {k} to {a}", [NUMBER], ["return {a} + {k}"], list(range(1, 21))),
    Function(
        ["times_{k}", "multiply_by_{k}"], "multiplies {a} by {k}", [NUMBER], ["return {a} * {k}"], list(range(2, 13))
    ),
    Function(["square", "squared"], "returns the square of {a}", [NUMBER], ["return {a} * {a}"]),
    Function(["cube"], "returns the cube of {a}", [NUMBER], ["return {a} * {a} * {a}"]),
    Function(["double", "twice"], "doubles {a}", [NUMBER], ["return 2 * {a}"]),
    Function(["is_even", "even"], "says whether {a} is even", [NUMBER], ["return {a} % 2 == 0"]),
    Function(["is_odd", "odd"], "says whether {a} is odd", [NUMBER], ["return {a} % 2 == 1"]),
    Function(
        ["larger", "maximum", "bigger"],
        "returns the larger of {a} and {b}",
        [NUMBER, NUMBER],
        ["if {a} > {b}:", "    return {a}", "return {b}"],
    ),
    Function(
        ["smaller", "minimum"],
        "returns the smaller of {a} and {b}",
        [NUMBER, NUMBER],
        ["if {a} < {b}:", "    return {a}", "return {b}"],
    ),
    Function(
        ["is_larger_than_{k}", "above_{k}"],
        "says whether {a} is larger than {k}",
        [NUMBER],
        ["return {a} > {k}"],
        [0, 1, 5, 10, 20, 50],
    ),
    Function(
        ["divides", "is_multiple"], "says whether {a} is a multiple of {b}", [NUMBER, NUMBER], ["return {a} % {b} == 0"]
    ),
    Function(
        ["factorial"],
        "returns the factorial of {a}",
        ["small"],
        ["if {a} <= 1:", "    return 1", "return {a} * {f}({a} - 1)"],
    ),
    Function(
        ["fibonacci", "fib"],
        "returns Fibonacci number {a}",
        ["small"],
        ["if {a} <= 1:", "    return {a}", "return {f}({a} - 1) + {f}({a} - 2)"],
    ),
    Function(
        ["sum_to", "sum_up_to"],
        "adds all numbers from 1 to {a}",
        ["small"],
        ["result = 0", "for i in range(1, {a} + 1):", "    result += i", "return result"],
    ),
    Function(
        ["count_down", "countdown"],
        "returns the numbers from {a} down to 1",
        ["small"],
        ["return list(range({a}, 0, -1))"],
    ),
    Function(
        ["count_up", "numbers_to"], "returns the numbers from 1 to {a}", ["small"], ["return list(range(1, {a} + 1))"]
    ),
    Function(["greet", "say_hello", "hello"], "greets {a}", ["name"], ['return "Hello, " + {a} + "!"']),
    Function(["first_letter", "initial"], "returns the first letter of {a}", [WORD], ["return {a}[0]"]),
    Function(["last_letter"], "returns the last letter of {a}", [WORD], ["return {a}[-1]"]),
    Function(["reverse", "backwards"], "reverses {a}", [WORD], ["return {a}[::-1]"]),
    Function(["shout", "to_upper"], "writes {a} in upper case", [WORD], ["return {a}.upper()"]),
    Function(["count_letters", "letters"], "counts the letters of {a}", [WORD], ["return len({a})"]),
    Function(
        ["is_palindrome", "palindrome"],
        "says whether {a} reads the same backwards",
        [WORD],
        ["return {a} == {a}[::-1]"],
    ),
    Function(
        ["count_{k}", "how_many_{k}"],
        "counts the letter {k} in {a}",
        [WORD],
        ['return {a}.count("{k}")'],
        list("aeiost"),
    ),
    Function(
        ["starts_with_{k}"],
        "says whether {a} starts with {k}",
        [WORD],
        ['return {a}.startswith("{k}")'],
        list("abcmst"),
    ),
    Function(["join_words", "join"], "joins {a} and {b} with a space", [WORD, WORD], ['return {a} + " " + {b}']),
    Function(["repeat_word", "repeat"], "repeats {a} {b} times", [WORD, "tiny"], ["return {a} * {b}"]),
    Function(
        ["calculate_sum", "sum_list", "add_all"],
        "adds the numbers in {a}",
        [LIST],
        ["result = 0", "for number in {a}:", "    result += number", "return result"],
    ),
    Function(["largest", "find_max"], "returns the largest number in {a}", [LIST], ["return max({a})"]),
    Function(["smallest", "find_min"], "returns the smallest number in {a}", [LIST], ["return min({a})"]),
    Function(["first", "first_item"], "returns the first item of {a}", [LIST], ["return {a}[0]"]),
    Function(["last", "last_item"], "returns the last item of {a}", [LIST], ["return {a}[-1]"]),
    Function(["sort_numbers", "in_order"], "sorts the numbers in {a}", [LIST], ["return sorted({a})"]),
    Function(
        ["even_numbers", "only_even"],
        "keeps the even numbers of {a}",
        [LIST],
        ["return [n for n in {a} if n % 2 == 0]"],
    ),
    Function(["doubled", "double_all"], "doubles each number in {a}", [LIST], ["return [2 * n for n in {a}]"]),
    Function(["longest", "longest_word"], "returns the longest word in {a}", [WORDS], ["return max({a}, key=len)"]),
    Function(["count_items", "size"], "counts the items in {a}", [LIST], ["return len({a})"]),
    Function(
        ["is_prime", "prime"],
        "says whether {a} is prime",
        [NUMBER],
        ["if {a} < 2:", "    return False", "return all({a} % i != 0 for i in range(2, {a}))"],
    ),
    Function(["average", "mean"], "returns the average of {a}", [LIST], ["return sum({a}) / len({a})"]),
    Function(
        ["count_vowels", "vowels"], "counts the vowels in {a}", [WORD], ['return sum(1 for c in {a} if c in "aeiou")']
    ),
    Function(["power", "to_the_power"], "raises {a} to the power of {b}", [NUMBER, "tiny"], ["return {a} ** {b}"]),
    Function(
        ["absolute", "distance_from_zero"],
        "returns the absolute value of {a}",
        [NUMBER],
        ["if {a} < 0:", "    return -{a}", "return {a}"],
    ),
    Function(["is_empty", "empty"], "says whether {a} is empty", [LIST], ["return len({a}) == 0"]),
    Function(["unique", "without_doubles"], "returns {a} without doubles", [LIST], ["return sorted(set({a}))"]),
    Function(["contains", "has_item"], "says whether {a} contains {b}", [LIST, NUMBER], ["return {b} in {a}"]),
]
PARAMETERS = {
    NUMBER: ["a", "b", "n", "x", "y", "number", "value", "m"],
    "small": ["n", "x", "number"],
    "tiny": ["n", "times"],
    WORD: ["word", "text", "s", "t"],
    "name": ["name", "person"],
    LIST: ["numbers", "values", "items", "xs"],
    WORDS: ["words", "names"],
}


@dataclass
class Program:
    """A function with its names chosen."""

    name: str
    parameters: list[str]
    does: str
    body: list[str]
    kinds: list[str]
    run: object

    @property
    def doc(self) -> str:
        return self.does[0].upper() + self.does[1:] + "."

    def signature(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"

    def source(self, examples: list[tuple] = ()) -> str:
        shown = [line for values in examples for line in (f">>> {self.call(values)}", repr(self.run(*values)))]
        quotes = (
            ['    """' + self.doc + '"""']
            if not shown
            else ['    """' + self.doc, "", *("    " + s for s in shown), '    """']
        )
        return "\n".join([f"def {self.signature()}:", *quotes, *("    " + line for line in self.body)])

    def call(self, values: tuple) -> str:
        return f"{self.name}({', '.join(map(repr, values))})"

    def values(self, rng: Random) -> tuple:
        return tuple(_value(rng, kind) for kind in self.kinds)


def _value(rng: Random, kind: str):
    return {
        NUMBER: lambda: rng.randint(1, 12),
        "small": lambda: rng.randint(1, 7),
        "tiny": lambda: rng.randint(2, 3),
        WORD: lambda: rng.choice(SHORT_WORDS),
        "name": lambda: rng.choice(world.NAMES),
        LIST: lambda: [rng.randint(1, 20) for _ in range(rng.randint(2, 4))],
        WORDS: lambda: rng.sample(SHORT_WORDS, 3),
    }[kind]()


SHORT_WORDS = [w for w in world.WORDS if len(w) <= 6]


def program(rng: Random, name: str | None = None) -> Program:
    """A function with names, and the function itself to compute examples with."""
    function = rng.choice(FUNCTIONS)
    constant = rng.choice(function.constants) if function.constants else None
    parameters = []
    for kind in function.kinds:
        parameters.append(rng.choice([p for p in PARAMETERS[kind] if p not in parameters]))
    slots = dict(zip("ab", parameters), k=constant)
    name = name or rng.choice(function.names).format(**slots)
    slots["f"] = name
    body = [line.format(**slots) for line in function.lines]
    made = Program(name, parameters, function.does.format(**slots), body, function.kinds, None)
    scope: dict = {}
    exec(made.source(), scope)
    made.run = scope[name]
    return made


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def write(rng: Random) -> Task:
    """A function is wanted; the request names the parameters, so that one answer is right."""
    p = program(rng)
    given = " and ".join(p.parameters)
    i, q = ways(
        rng,
        [
            "Write a Python function {n} that {d}.",
            "Write a function {n}({g}) that {d}.",
            "Write a Python function called {n} that {d}.",
            "Please write a function {n} in Python that {d}.",
            "Define a Python function {n} that {d}.",
            "Can you write a Python function named {n} that {d}?",
            "Python: a function {n} that {d}.",
        ],
        n=p.name,
        d=p.does,
        g=", ".join(p.parameters),
    )
    return Task("writing Python", q, _fenced(p.source()), ("write", p.name, given, i), loose=False)


def write_unnamed(rng: Random) -> Task:
    """No name is given: the function's first name and plain parameters are the answer."""
    function = rng.choice(FUNCTIONS)
    constant = rng.choice(function.constants) if function.constants else None
    parameters = []
    for kind in function.kinds:
        parameters.append(next(p for p in PARAMETERS[kind] if p not in parameters))
    article = {
        NUMBER: "a number",
        "small": "a number",
        "tiny": "a number",
        WORD: rng.choice(["a word", "a string", "a text"]),
        "name": "a name",
        LIST: rng.choice(["a list", "a list", "a list of numbers"]),
        WORDS: "a list",
    }
    slots = dict(zip("ab", parameters), k=constant)
    plain = dict(
        slots,
        a="two numbers"
        if "{b}" in function.does and function.does.startswith(("adds", "multiplies"))
        else article[function.kinds[0]],
    )
    does = function.does.format(**slots)
    name = function.names[0].format(**slots)
    said = does
    if does == "adds a and b":
        said = rng.choice(["adds two numbers", "returns the sum of two numbers", "adds a and b"])
    elif does == "multiplies a by b":
        said = rng.choice(["multiplies two numbers", "multiplies a by b"])
    elif name == "fibonacci":
        said = rng.choice(["returns the n-th Fibonacci number", "computes Fibonacci numbers"])
    elif len(parameters) == 1:
        said = function.does.format(**plain)
    body = [line.format(**dict(slots, f=name)) for line in function.lines]
    made = Program(name, parameters, does, body, function.kinds, None)
    i, q = ways(
        rng,
        [
            "Write a Python function that {d}.",
            "Write a function that {d}.",
            "Give me a Python function that {d}.",
            "How do I write a Python function that {d}?",
            "Write Python code that {d}.",
            "I need a function that {d}.",
            "Write a Python function. It {d}.",
        ]
        + (
            [
                "Write a Python function to check if {c}.",
                "Write a function that checks if {c}.",
                "Write a function to check whether {c}.",
            ]
            if said.startswith("says whether ")
            else ["Write a Python function {n} that {d}."]
        ),
        d=said,
        n=name,
        c=said.removeprefix("says whether "),
    )
    return Task("writing Python", q, _fenced(made.source()), ("unnamed", said, i))


def explain(rng: Random) -> Task:
    """What a function does, in its docstring's words, without the docstring in sight."""
    p = program(rng)
    code = "\n".join([f"def {p.signature()}:", *("    " + line for line in p.body)])
    i, q = ways(
        rng,
        ["What does this function do?\n\n{c}", "Explain this function:\n\n{c}", "What does this code do?\n\n{c}"],
        c=_fenced(code),
    )
    return Task(
        "reading Python", q, f"The function {p.name} {p.does}.", ("explain", p.name, *p.parameters, i), loose=False
    )


def document(rng: Random) -> str:
    """A file of functions with examples."""
    parts = []
    for _ in range(rng.randint(1, 5)):
        p = program(rng)
        parts.append(p.source([p.values(rng) for _ in range(rng.choice([0, 1, 1, 2]))]))
    head = rng.choice(["", "", "# Small helpers.\n\n\n", '"""Small functions."""\n\n\n'])
    return head + "\n\n\n".join(parts) + "\n"


KINDS = [(write, 4), (write_unnamed, 3), (explain, 3)]
