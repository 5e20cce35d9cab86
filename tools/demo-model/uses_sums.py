"""What calculators are asked for: an expression, two numbers and an operation, or one operation alone. Knows no conversation."""

from fractions import Fraction
from random import Random

import sums
from task import ways
from toolbox import Kind, Parameter, Tool
from uses import Use, shown_as

EXPRESSION = Kind(
    "expression",
    "calculator|calculation|calc|math|arithmetic|expression|sum|compute",
    "[Calculates|Calculate|Evaluate|Evaluates|Computes|Compute|Works out|Solves] [an expression|a mathematical expression|an arithmetic expression|"
    "a formula|a sum|a calculation|arithmetic|basic arithmetic|the value of an expression][| exactly| and returns the result][.|]||"
    "[A calculator|Calculator|Does arithmetic|Use this for maths|For arithmetic|Math][|: + - * /| with brackets| for numbers][.|]",
    (
        Parameter(
            "expression",
            "expression|expr|formula|calculation|input|term|math|what|sum|e",
            "The expression, such as 2 * (3 + 4)|What to calculate|An arithmetic expression|The formula|The calculation",
        ),
    ),
)
OPERATIONS = ("+", "-", "*", "/")
LEFT = Parameter(
    "left",
    "a|x|left|first|number1|n1|first_number|num1|value_a",
    "The first number|Left number|First operand",
    "number",
)
RIGHT = Parameter(
    "right",
    "b|y|right|second|number2|n2|second_number|num2|value_b",
    "The second number|Right number|Second operand",
    "number",
)
OPERATION = Kind(
    "operation",
    "calculator|calculation|calc|math|arithmetic|operation|two_numbers",
    "[Calculates with|Calculate with|Apply an operation to|Performs an operation on|Do arithmetic with|Adds, subtracts, multiplies or divides|"
    "A calculator for|Arithmetic on|Computes with] [two numbers|a pair of numbers|two values|2 numbers][.|]",
    (
        LEFT,
        RIGHT,
        Parameter(
            "operation",
            "operation|op|operator|action|how|what|kind",
            "What to do with the numbers|The operation|Which operation",
            values=OPERATIONS,
            choices=(
                ("add", "subtract", "multiply", "divide"),
                ("+", "-", "*", "/"),
                ("plus", "minus", "times", "divided_by"),
                ("sum", "difference", "product", "quotient"),
            ),
        ),
    ),
)
SINGLE = {
    "+": Kind(
        "add",
        "add|addition|plus|sum_of_two|add_numbers",
        "[Adds|Add|The sum of|Returns the sum of|Sums] [two numbers|a and b|two values|a pair of numbers][.|]",
        (LEFT, RIGHT),
    ),
    "-": Kind(
        "subtract",
        "subtract|subtraction|minus|difference",
        "[Subtracts|Subtract] [two numbers|the second number from the first|one number from another][.|]||[The|Returns the] difference of two [numbers|values][.|]",
        (LEFT, RIGHT),
    ),
    "*": Kind(
        "multiply",
        "multiply|multiplication|times|product",
        "[Multiplies|Multiply|The product of|Returns the product of] [two numbers|a and b|two values|a pair of numbers][.|]",
        (LEFT, RIGHT),
    ),
    "/": Kind(
        "divide",
        "divide|division|quotient|ratio",
        "[Divides|Divide] [two numbers|the first number by the second|one number by another][.|]||[The|Returns the] quotient of two [numbers|values][.|]",
        (LEFT, RIGHT),
    ),
}
ASK_SUM = {
    "+": [
        *sums.ADD,
        "Work out {a} + {b}.",
        "Please calculate {a} plus {b}.",
        "A town has {a} people and gets {b} more. How many are there now?",
    ],
    "-": [
        *sums.SUB,
        "Work out {a} - {b}.",
        "Please calculate {a} minus {b}.",
        "There were {a} books and {b} were sold. How many are left?",
    ],
    "*": [
        *sums.MUL,
        "Work out {a} * {b}.",
        "Please calculate {a} times {b}.",
        "There are {a} boxes with {b} nails each. How many nails are there?",
    ],
    "/": [
        *sums.DIV,
        "Work out {a} / {b}.",
        "Please calculate {a} divided by {b}.",
        "{a} coins are shared by {b} people. How many does each get?",
    ],
}
CHAINS = ["{a} + {b} + {c}", "{a} + {b} * {c}", "{a} * {b} + {c}", "({a} + {b}) * {c}", "({a} - {b}) * {c}", "{a} * ({b} + {c})",
          "{a} - {b} + {c}", "{a} * {b} * {c}", "({a} + {b}) / {c}", "{a} * {b} - {c}"]  # fmt: skip
ASK_CHAIN = [
    "What is {x}?",
    "{x}",
    "Calculate {x}.",
    "How much is {x}?",
    "Work out {x}.",
    "What's {x}?",
    "Compute {x}.",
    "Please calculate {x}.",
]


def _number(rng: Random, whole: bool) -> str:
    n = rng.randint(0, 10 ** rng.choice([1, 2, 2, 3, 3, 4, 5, 6]) - 1)
    return (
        str(n)
        if whole or rng.random() < 0.87
        else f"{n}.{rng.choice(['5', '25', '75', str(rng.randint(1, 99)).rstrip('0')])}"
    )


def _value(expression: str) -> str:
    """Exactly, or to four places."""
    exact = eval(
        "".join(f"Fraction('{p}')" if p[0].isdigit() else p for p in _parts(expression)), {"Fraction": Fraction}
    )
    return str(exact.numerator) if exact.denominator == 1 else str(round(float(exact), 4))


def _parts(expression: str) -> list[str]:
    for mark in "()+-*/":
        expression = expression.replace(mark, f" {mark} ")
    return expression.split()


def _sum_result(rng: Random, expression: str) -> tuple[str, str]:
    value = _value(expression)
    if "." not in value and rng.random() < 0.12:
        value += ".0"
    number = float(value) if "." in value else int(value)
    number = value if rng.random() < 0.1 else number
    shown = rng.choice(
        [
            value,
            value,
            {rng.choice(["result", "value", "answer", "output", "total"]): number},
            {"expression": expression, "result": number},
            f"{expression} = {value}",
        ]
    )
    return shown_as(shown), f"{expression} = {value}."


def arithmetic(rng: Random, tools: list[Tool]) -> Use:
    """A sum for one of these tools, which take an expression, two numbers and an operation, or two numbers alone."""
    tool = rng.choice(tools)
    if tool.kind is EXPRESSION and rng.random() < 0.35:
        x = rng.choice(CHAINS).format(a=_number(rng, False), b=_number(rng, False), c=rng.randint(1, 999))
        i, question = ways(rng, ASK_CHAIN, x=x)
        return Use(tool, question, {"expression": x}, ("chain", x), lambda r: _sum_result(r, x), x)
    whole = "integer" in tool.types.values()
    sign = next((s for s, kind in SINGLE.items() if kind is tool.kind), None) or rng.choice(OPERATIONS)
    a, b = _number(rng, whole), _number(rng, whole)
    if sign == "/":
        b = b if Fraction(b) else "4"
        a = str(int(float(b)) * rng.randint(1, 400)) if rng.random() < 0.5 else a
    if sign == "-" and Fraction(a) < Fraction(b) and rng.random() < 0.8:
        a, b = b, a
    i, question = ways(rng, ASK_SUM[sign], a=a, b=b)
    x = f"{a} {sign} {b}"
    number = lambda t: float(t) if "." in t else int(t)
    arguments = {"expression": x} if tool.kind is EXPRESSION else {"left": number(a), "right": number(b)}
    if tool.kind is OPERATION:
        arguments["operation"] = sign
    return Use(tool, question, arguments, ("tool sum", a, sign, b), lambda r: _sum_result(r, x), x)
