"""Tools as a request offers them: what a kind of tool is for, and the many names and forms that its description takes. Knows no question."""

import re
from dataclasses import dataclass
from random import Random

import cast
from task import held_out
from world import listed

VERBS = "get|fetch|look_up|lookup|find|check|show|read|query|ask|tell|request|retrieve|run|call|do|use".split("|")
SUFFIXES = "tool|api|service|function|now|helper|info|v2|request".split("|")


@dataclass(frozen=True)
class Parameter:
    """A parameter by the role that its value plays. `share`: how many tools have it; it is optional if that is not all."""

    role: str
    names: str
    says: str
    kind: str = "string"
    share: float = 1.0
    # What its values may be called, in the order of the roles' own values.
    values: tuple[str, ...] = ()
    choices: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Kind:
    """What a tool is for. `nouns` name it, `says` describe it; of what stands in brackets one is taken."""

    name: str
    nouns: str
    says: str
    parameters: tuple[Parameter, ...] = ()


@dataclass
class Tool:
    """A tool of a request: its description, and how its roles and their values are called there."""

    kind: Kind
    shown: dict
    roles: dict[str, str]
    values: dict[str, dict[str, str]]
    types: dict[str, str]

    def call(self, arguments: dict) -> dict:
        """A call with the values of these roles, in the order of the description."""
        named = {self.roles[r]: self.values[r].get(v, v) for r, v in arguments.items()}
        order = self.shown["function"]["parameters"]["properties"]
        return {"name": self.shown["function"]["name"], "arguments": {n: named[n] for n in order if n in named}}


def said(rng: Random, patterns: str) -> str:
    """One of the patterns, with one choice for each pair of brackets."""
    text = rng.choice(patterns.split("||"))
    return re.sub(r"\[([^]]*)\]", lambda m: rng.choice(m[1].split("|")), text)


def _camel(words: str) -> str:
    first, *rest = words.split("_")
    return first + "".join(w.capitalize() for w in rest)


def _name(rng: Random, kind: Kind) -> str:
    roll = rng.random()
    if roll < 0.12:
        return rng.choice([cast.invented(rng).lower(), f"tool_{rng.randint(1, 99)}", f"f{rng.randint(1, 999)}"])
    noun = rng.choice(listed(kind.nouns))
    if roll < 0.2:
        words = noun
    elif roll < 0.35:
        words = f"{noun}_{rng.choice(SUFFIXES)}"
    else:
        words = f"{rng.choice(VERBS)}_{noun}"
    roll = rng.random()
    return words if roll < 0.7 else _camel(words) if roll < 0.9 else words.replace("_", "-")


def function_name(rng: Random, kind: Kind, held: bool) -> str:
    """A name from the wanted side of the split: names that are asked for in evaluation are never trained on."""
    while True:
        name = _name(rng, kind)
        if held_out(("tool", name)) == held:
            return name


def _property(rng: Random, p: Parameter, name: str, titled: bool, described: bool) -> tuple[dict, str, dict]:
    kind = p.kind if p.kind != "number" or rng.random() < 0.75 else "integer"
    shown: dict = {"type": kind}
    if titled:
        shown = {"title": name.replace("_", " ").title(), "type": kind}
    values = {}
    if p.choices:
        chosen = rng.choice(p.choices)
        values = dict(zip(p.values, chosen))
        order = list(chosen)
        rng.shuffle(order)
        shown["enum"] = order
    if described:
        say = rng.choice(listed(p.says))
        shown = {"description": say, **shown} if rng.random() < 0.2 else {**shown, "description": say}
    return shown, kind, values


def describe(rng: Random, kind: Kind, held: bool) -> Tool:
    """One of the many forms of a tool of this kind."""
    titled, described = rng.random() < 0.12, rng.random() < 0.55
    roles, values, types, properties, required = {}, {}, {}, {}, []
    for p in kind.parameters:
        if rng.random() >= p.share:
            continue
        free = [n for n in listed(p.names) if n not in properties]
        name = rng.choice(free) if rng.random() < 0.93 else cast.invented(rng).lower()
        # A name that says nothing is explained.
        properties[name], types[p.role], values[p.role] = _property(
            rng, p, name, titled, described or name not in free or len(name) < 2
        )
        roles[p.role] = name
        if p.share == 1.0:
            required.append(name)
    if rng.random() < 0.15:
        names = list(properties)
        rng.shuffle(names)
        properties = {n: properties[n] for n in names}
    parameters: dict = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        parameters["required"] = required
    if rng.random() < 0.2:
        parameters["additionalProperties"] = False
    name = function_name(rng, kind, held)
    telling = any(noun.split("_")[-1] in name.lower() for noun in listed(kind.nouns))
    function: dict = {"name": name}
    if not telling or rng.random() < 0.9:
        function["description"] = said(rng, kind.says)
    function["parameters"] = parameters
    if rng.random() < 0.1:
        function["strict"] = True
    return Tool(kind, {"type": "function", "function": function}, roles, values, types)
