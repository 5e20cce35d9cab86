"""Conversations with tools: calls, one or several in a turn, answers from their results, and answers that need no tool. Knows no tokens."""

import json
import re
from random import Random

import chats
import uses
import uses_search
import uses_small
import uses_sums
from chats import Chat
from talk import DECLINE
from task import Task, held_out
from template import call_text
from toolbox import Kind, Tool, describe
from uses import Use

ARITHMETIC = [uses_sums.EXPRESSION, uses_sums.OPERATION, *uses_sums.SINGLE.values()]
SUMS = {"sum", "difference", "product", "quotient", "word problem", "double and half"}
SUMS_OUTSIDE = ("outside sums", "big sum", "big product")
# Questions outside the model's world that one of the tools might answer.
OVERLAP = re.compile(
    r"weather|time|date|day|clock|light|alarm|send|email|message|call|translat|search|price|cost|much|die|dice|note|remember|say|german|french|temperature",
    re.I,
)
# A text without quotes ends their questions.
FREE = (uses_search.SEARCH, uses_small.MESSAGE, uses_small.NOTE)
WEATHER_OF_SEVERAL = ["What is the weather in {p}?", "How is the weather in {p}?", "Weather in {p}?", "Tell me the weather in {p}.",
                      "Compare the weather in {p}.", "What's the weather like in {p}?"]  # fmt: skip
TIME_OF_SEVERAL = ["What time is it in {p}?", "Tell me the time in {p}.", "What's the time in {p}?"]
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.S)


def read_calls(text: str) -> list | None:
    """The calls that a text consists of; None if it is not calls alone."""
    if not re.fullmatch(rf"{CALL.pattern}(\n{CALL.pattern})*", text, re.S):
        return None
    try:
        return [json.loads(m) for m in CALL.findall(text)]
    except json.JSONDecodeError:
        return None


def _tools(rng: Random, held: bool) -> list[Tool]:
    """One to eight tools of different kinds; arithmetic comes as one tool or as several."""
    kinds: list[Kind] = []
    main = rng.sample(["weather", "arithmetic", "search"], rng.choices([0, 1, 2, 3], [2, 4, 3, 3])[0])
    for name in main:
        if name == "arithmetic":
            roll = rng.random()
            kinds += (
                [uses_sums.EXPRESSION]
                if roll < 0.55
                else [uses_sums.OPERATION]
                if roll < 0.8
                else rng.sample(list(uses_sums.SINGLE.values()), rng.randint(1, 4))
            )
        else:
            kinds.append(uses.WEATHER if name == "weather" else uses_search.SEARCH)
    others = rng.choices([0, 1, 2], [5, 3, 2])[0] if main else rng.randint(1, 3)
    kinds += [kind for kind, _ in rng.sample(uses_small.USES, others)]
    rng.shuffle(kinds)
    while True:
        tools = [describe(rng, kind, held) for kind in kinds]
        if len({t.shown["function"]["name"] for t in tools}) == len(tools):
            return tools


def _use(rng: Random, tool: Tool, held: bool) -> Use:
    """A question for this tool, from the wanted side of the split."""
    makers = {id(kind): make for kind, make in uses_small.USES}
    while True:
        if tool.kind in ARITHMETIC:
            use = uses_sums.arithmetic(rng, [tool])
        elif tool.kind is uses.WEATHER:
            use = uses.weather(rng, tool)
        elif tool.kind is uses_search.SEARCH:
            use = uses_search.search(rng, tool)
        else:
            use = makers[id(tool.kind)](rng, tool)
        if held_out(use.key) == held:
            return use


def _kind_of(used: list[Use]) -> str:
    if len(used) > 1:
        return "several calls"
    kind = used[0].tool.kind
    return (
        "calculator"
        if kind in ARITHMETIC
        else kind.name
        if kind in (uses.WEATHER, uses_search.SEARCH)
        else "other tools"
    )


def _of_place(tool: Tool, where: str, key: tuple) -> Use:
    """The weather or the time of a place and nothing else."""
    make = uses.report if tool.kind is uses.WEATHER else uses_small.clock
    result = (lambda r: make(r, where, "")) if make is uses.report else (lambda r: make(r, where))
    return Use(tool, "", {"place": where}, key, result, where)


def _several(rng: Random, tools: list[Tool], held: bool) -> tuple[str, list[Use]]:
    """Two or three questions in one message, for one tool or for several."""
    number = rng.choice([2, 2, 2, 3])
    if rng.random() < 0.5 or len(tools) < 2:
        picked = [rng.choice(tools)] * number
    else:
        picked = rng.sample(tools, min(number, len(tools)))
    used, calls = [], []
    for tool in picked:
        use = _use(rng, tool, held)
        if tool.call(use.arguments) not in calls:
            calls.append(tool.call(use.arguments))
            used.append(use)
    tool = picked[0]
    if tool is picked[1] and tool.kind in (uses.WEATHER, uses_small.TIME):
        places = list(dict.fromkeys(u.subject for u in used))
        if len(places) > 1:
            listing = ", ".join(places[:-1]) + " and " + rng.choice(["", "in "]) + places[-1]
            ask = WEATHER_OF_SEVERAL if tool.kind is uses.WEATHER else TIME_OF_SEVERAL
            return rng.choice(ask).format(p=listing), [_of_place(tool, p, ("several", p)) for p in places]
    return _joined(rng, used), used


def _joined(rng: Random, used: list[Use]) -> str:
    """Questions one after the other, as one sentence where it stays clear where each ends."""
    said = used[0].question
    for before, use in zip(used, used[1:]):
        said = said if said[-1] in ".?" else said + "."
        # The words of a text or a query stay as they are.
        low = use.question if use.tool.kind is uses_search.SEARCH else use.question[0].lower() + use.question[1:]
        ways = [
            f"{said} {use.question}",
            f"{said} Also: {use.question}",
            f"{said}\n{use.question}",
            f"{said} And {low}",
        ]
        if before.tool.kind not in FREE:
            ways += [f"{said[:-1]}, and {low}", f"{said[:-1]} and {low}"] * 2
        said = rng.choice(ways)
    return said


def _hurried(rng: Random, use: Use) -> str:
    """The question as a hurried or a polite person writes it; what is copied from it stays."""
    said, roll = use.question, rng.random()
    if roll < 0.12 and said[-1] in ".?":
        said = said[:-1]
    if 0.08 < roll < 0.2 and use.tool.kind is not uses_search.SEARCH:
        said = said[0].lower() + said[1:]
    return rng.choice(["Hey, ", "Please answer: ", "Hello! ", "Next question: "]) + said if roll > 0.95 else said


def exchange(chat: Chat, rng: Random, used: list[Use], question: str) -> None:
    """A question, its calls, their results and the answer."""
    calls = [u.tool.call(u.arguments) for u in used]
    key = used[0].key if len(used) == 1 else ("several", *[u.key for u in used])
    task = Task(
        f"call: {_kind_of(used)}", question, call_text(calls), key, accept=lambda text: read_calls(text) == calls
    )
    chat.turn(task)
    chat.messages[-1] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": c} for c in calls],
    }
    said = []
    for use in used:
        content, answer = (
            uses.failure(rng, str(next(iter(use.arguments.values()), ""))) if rng.random() < 0.06 else use.result(rng)
        )
        chat.messages.append({"role": "tool", "content": content})
        said.append(answer)
    answer = " ".join(said)
    chat.reply(Task(f"answer: {_kind_of(used)}", question, answer, key))


def _without(rng: Random, tools: list[Tool], held: bool) -> Task:
    """A question that none of the tools is for."""
    kinds = [t.kind for t in tools]
    sums, searches = any(k in ARITHMETIC for k in kinds), uses_search.SEARCH in kinds
    while True:
        task = chats.any_task(rng, held)
        outside = task.kind == "outside its world" and task.key[0] != "foreign"
        if sums and (task.kind in SUMS or task.key[0] in SUMS_OUTSIDE):
            continue
        if outside and tools and (searches or OVERLAP.search(task.question)):
            continue
        task.kind = "answer: no tool needed"
        return task


def _missing(rng: Random, tools: list[Tool], held: bool) -> Task | None:
    """A question for a tool that is not offered."""
    kinds = [t.kind for t in tools]
    others = [k for k in (uses.WEATHER, *(k for k, _ in uses_small.USES)) if k not in kinds]
    if uses_search.SEARCH in kinds or not others:
        return None
    tool = describe(rng, rng.choice(others), held)
    use = _use(rng, tool, held)
    return Task("answer: no such tool", use.question, DECLINE, use.key)


def conversation(rng: Random, held: bool = False) -> Chat:
    """A conversation of one to four exchanges in which tools are offered; rarely none are, and what they would do is declined."""
    tools = _tools(rng, held) if rng.random() < 0.94 else []
    chat = Chat(tools=[t.shown for t in tools])
    if rng.random() < 0.35:
        chat.messages.append({"role": "system", "content": rng.choice(chats.PLAIN_SYSTEM)})
    last = None
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
        roll = rng.random()
        if roll < 0.1 or not tools:
            task = _missing(rng, tools, held)
            if task:
                chat.turn(task)
        elif roll < 0.28:
            if rng.random() < 0.12:
                chats.about_told_story(chat, rng, held)
            else:
                chat.turn(_without(rng, tools, held))
        elif roll < 0.45:
            question, used = _several(rng, tools, held)
            exchange(chat, rng, used, question)
            last = None
        elif last and last.subject and rng.random() < 0.5:
            use = _use(rng, last.tool, held)
            ask = ["And {s}?", "What about {s}?", "Now {s}."]
            if "place" in use.arguments:
                use = _of_place(use.tool, use.subject, use.key)
                ask += ["And in {s}?", "And in {s}?", "What about in {s}?"]
            exchange(chat, rng, [use], rng.choice(ask).format(s=use.subject))
        else:
            last = _use(rng, rng.choice(tools), held)
            exchange(chat, rng, [last], _hurried(rng, last))
    return chat if chat.tasks else conversation(rng, held)
