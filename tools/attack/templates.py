"""Chat templates that never end or never stop growing: from a file at start, and from requests.

Knows Jinja, no engine.
"""

import asyncio
import time
from pathlib import Path

from .bystanders import Bystanders
from .client import ask, encode, slowest_probe
from .report import Report, curl, snippet
from .server import Server, StartError
from .stage import CHAT, Options, Stage

# What rendering any template may take, on a busy machine.
SECONDS = 20

# What it may add to the process.
MOST_MEMORY = 256 << 20

# A checkpoint whose conversations have a format of their own, and how long a probe may wait beside one.
MISTRAL_CHECKPOINT = Path(__file__).parents[2] / "tests/golden/models/mistral-tekken"
MISTRAL_PROBE = 5

DOUBLING = (
    "{% set ns = namespace(s='x') %}{% for i in range(RANGE) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
)

# Each as a Python expression, for the reproduction.
EXPRESSIONS: dict[str, str] = {
    "nested ranges": '"{% for a in range(99999) %}" * 4 + "x" + "{% endfor %}" * 4',
    "nested empty ranges": '"{% for a in range(99999) %}" * 6 + "{% endfor %}" * 6',
    "a range without end": '"{% for a in range(10**18) %}x{% endfor %}"',
    "a huge range as a list": '"{{ range(10**12) | list | length }}"',
    "doubling strings": repr(DOUBLING.replace("RANGE", "60")),
    "doubling lists": """"{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}x" """,
    "a growing replace": """"{% set ns = namespace(s='ab') %}{% for i in range(40) %}"
        "{% set ns.s = ns.s | replace('a', 'aab') %}{% endfor %}{{ ns.s }}" """,
    "a growing replace by method": """"{% set ns = namespace(s='aaaa') %}{% for i in range(40) %}"
        "{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}{{ ns.s }}" """,
    "a growing join": """"{% set ns = namespace(s='ab') %}{% for i in range(40) %}"
        "{% set ns.s = [ns.s, ns.s, ns.s] | join(ns.s) %}{% endfor %}{{ ns.s }}" """,
    "a product of strings": '"{{ \'x\' * 10**12 }}"',
    "a product of lists": '"{{ ([1] * 10**12) | length }}"',
    "powers": '"{{ 9 ** 9 ** 9 ** 9 }}"',
    "a slice of a huge count": '"{{ [1, 2] | slice(10**12) | list | length }}"',
    "a batch filled up": '"{{ [1, 2] | batch(10**12, 0) | list | length }}"',
    "a wide format": """"{{ '%1000000000000d' | format(1) }}{{ '{:>1000000000000}'.format(1) }}" """,
    "a wide centre": """"{{ 'x' | center(10**12) }}{{ 'x'.center(10**12) }}{{ 'x'.ljust(10**12) }}{{ 'x'.zfill(10**12) }}" """,
    "an indent": """"{{ ('x\\\\n' * 1000000) | indent(1000000) }}" """,
    "a json indent": '"{{ [[[[1]]]] | tojson(indent=10**12) }}"',
    "a json of a json": """"{% set ns = namespace(s='\\\\\\\\') %}{% for i in range(60) %}{% set ns.s = ns.s | tojson %}{% endfor %}{{ ns.s }}" """,
    "long unary chains": '"{{ " + "not " * 200_000 + "1 }}"',
    "long minus chains": '"{{ " + "-" * 200_000 + "1 }}"',
    "long attribute chains": '"{{ a" + ".b" * 200_000 + " }}"',
    "long filter chains": '"{{ 1" + "|string" * 200_000 + " }}"',
    "long sums": '"{{ 1" + "+1" * 200_000 + " }}"',
    "long concatenations": '"{{ 1" + "~1" * 200_000 + " }}"',
    "long conditions": '"{{ " + "1 if 1 else " * 200_000 + "1 }}"',
    "deep parentheses": '"{{ " + "(" * 200_000 + "1" + ")" * 200_000 + " }}"',
    "deep lists": '"{{ " + "[" * 200_000 + "]" * 200_000 + " }}"',
    "deep blocks": '"{% if 1 %}" * 100_000 + "{% endif %}" * 100_000',
    "a macro that calls itself": '"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"',
    "a macro that calls itself twice": '"{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}"',
    "a recursive loop": '"{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}"',
    "a deep value": """"{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}" """,
    "a template that includes itself": """"{% include 'default' %}" """,
    "the reverse of nothing": '"{{ [] | reverse | list }}{{ [][::-1] }}"',
    "a slice of step zero": """"{{ 'abc'[::0] }}{{ [1][9223372036854775807:-9223372036854775808:-1] }}" """,
    "numbers over the edge": '"{{ -9223372036854775808 // -1 }}{{ 9223372036854775807 + 1 }}{{ 1 % 0 }}{{ 10**40 % -1 }}"',
    "a sort of everything": '"{{ range(99999) | map(\'string\') | sort | unique | sort(reverse=true) | join | length }}" * 300',
    "output without end": '"{% for a in range(99999) %}" + "x" * 100_000 + "{% endfor %}"',
    "many sets": '"{% set a = 1 %}" * 250_000',
}  # fmt: skip

BOMBS = {name: f"({' '.join(line.strip() for line in text.splitlines())})" for name, text in EXPRESSIONS.items()}

CORE = [
    "nested ranges",
    "doubling strings",
    "a growing replace by method",
    "a slice of a huge count",
    "long unary chains",
]
CORE += ["a macro that calls itself twice"]

# Each that works takes all of SECONDS.
MOST_FAILURES = 8

TRUST = "--trust-request-chat-template"


def bomb(name: str) -> str:
    return eval(BOMBS[name])  # Written above, so that what is shown is what is sent.


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        await _refused_without_flag(stage)
        await stage.well("a template without the flag")
    names = CORE if options.core else list(BOMBS)
    try:
        async with Stage(options, report, flags=(TRUST,)) as stage:
            await _trusted(stage, names)
    except StartError as error:
        report.check(False, f"{TRUST}: the server does not start: {str(error)[:300]}", f"vllm-apple serve {TRUST}")
    await _mistral(options, report)
    before = len(report.failures)
    for name in names[:: options.scale(1, 2)]:
        await _from_file(options, report, name)
        if len(report.failures) - before >= MOST_FAILURES:
            report.check(False, "after so many failures the other bombs are left out")
            break


# Conversations in a format that has no template: trees of values, a text without end, calls and their results in another order.
MISTRAL: dict[str, str] = {
    "calls whose arguments are trees": """{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
        {"id": "a" * 9, "type": "function", "function": {"name": "f", "arguments": "[" + ",".join(["[0]"] * 500_000) + "]"}}] * 7},
        {"role": "user", "content": "Hi"}], "max_tokens": 1}""",
    "a field that is a tree": '{"messages": [{"role": "user", "content": "Hi", "x": [[0]] * 300_000}], "max_tokens": 1}',
    "a text without end": '{"messages": [{"role": "user", "content": "x" * 15_000_000}], "max_tokens": 1}',
    "results in another order": """{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
        {"id": f"{i:09}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(30_000)]},
        *[{"role": "tool", "tool_call_id": f"{i:09}", "content": "x"} for i in reversed(range(30_000))]], "max_tokens": 1}""",
}  # fmt: skip


async def _mistral(options: Options, report: Report) -> None:
    """Conversations for a checkpoint with a tekken.json alone."""
    server = Server(options.binary, options.directory, model=MISTRAL_CHECKPOINT)
    await server.ready(SECONDS)
    for name, expression in MISTRAL.items():
        how = snippet(CHAT, expression) + f"   with {MISTRAL_CHECKPOINT}"
        body = encode(eval(expression))  # Written above, so that what is shown is what is sent.
        server.reset_peak()
        before = server.rss()
        report.count("bombs")
        attack = asyncio.create_task(ask(server.port, CHAT, body, timeout=SECONDS))
        slowest = await slowest_probe(server.port, [attack], SECONDS)
        answer = await attack
        report.check(answer.status in (200, 400), f"{name}: {answer.short()[:200]}", how)
        report.check(slowest < MISTRAL_PROBE, f"{name}: /health took {slowest:.1f} s beside it", how)
        grown = server.peak() - before
        report.check(grown < MOST_MEMORY, f"{name}: {grown >> 20} MiB more at the peak", how)
    report.check("panicked at" not in server.log(), "a panic in the log", f"conversations for {MISTRAL_CHECKPOINT}")
    server.kill()


def _request(template: str) -> dict[str, object]:
    messages = [{"role": "user", "content": "What is the capital of Norway?"}]
    return {"messages": messages, "max_tokens": 24, "temperature": 0, "chat_template": template}


async def _refused_without_flag(stage: Stage) -> None:
    for path in (CHAT, "/tokenize"):
        body = _request("{{ messages[0].content }}")
        if path == "/tokenize":
            body = {"messages": body["messages"], "chat_template": body["chat_template"]}
        answer = await ask(stage.port, path, body)
        stage.report.count("requests")
        right = answer.status == 400 and "chat_template" in (answer.error or "")
        stage.report.check(right, f"{path}: chat_template without {TRUST} gets {answer.short()}", curl(path, body))


async def _trusted(stage: Stage, names: list[str]) -> None:
    body = _request(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    answer = await ask(stage.port, CHAT, body)
    right = answer.status == 200 and b"Oslo" in answer.body
    stage.report.check(right, f"a request's own template gets {answer.short()}", curl(CHAT, body))
    for name in names:
        expression = (
            f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 1, "chat_template": {BOMBS[name]}}}'
        )
        how = snippet(CHAT, expression) + f"   with {TRUST}"
        stage.server.reset_peak()
        before, began = stage.server.rss(), time.monotonic()
        stage.report.count("bombs")
        async with Bystanders(stage, f"beside {name}", how):
            body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "chat_template": bomb(name)}
            answer = await ask(stage.port, CHAT, body, timeout=SECONDS)
        took = time.monotonic() - began
        if answer.status <= 0:
            await asyncio.sleep(0.3)
            if not await stage.revive(name, how):
                continue
        # Some are harmless once numbers are bounded: then an answer is as good.
        right = answer.status in (200, 400) and (answer.status == 200 or answer.error is not None)
        stage.report.check(right, f"{name}: after {took:.1f} s: {answer.short()[:200]}", how)
        grown = stage.server.peak() - before
        stage.report.check(grown < MOST_MEMORY, f"{name}: {grown >> 20} MiB more at the peak", how)
        if answer.status <= 0:
            # It may still render: the next bomb gets a server of its own.
            stage.server.kill()
            await stage.start()
        else:
            await stage.well(name, how)


async def _from_file(options: Options, report: Report, name: str) -> None:
    """The server starts, or says in bounded time why not; if it starts, a chat ends in bounded time too."""
    path = Path(options.directory) / "bomb.jinja"
    path.write_text(bomb(name))
    how = f"python3 -c 'print({BOMBS[name]})' > bomb.jinja; vllm-apple serve --chat-template bomb.jinja"
    report.count("bombs")
    server = Server(options.binary, options.directory, "--chat-template", str(path), model=options.model)
    try:
        await server.ready(SECONDS)
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        answer = await ask(server.port, CHAT, body, timeout=SECONDS)
        right = answer.status in (200, 400)
        report.check(right, f"{name} from a file: {answer.short()[:200]}", f"{how}; {curl(CHAT, body)}")
        answer = await ask(server.port, "/v1/completions", {"prompt": "One day", "max_tokens": 4}, timeout=SECONDS)
        report.check(answer.status == 200, f"{name} from a file: then a completion gets {answer.short()[:200]}", how)
    except StartError as error:
        lines = str(error).strip().splitlines() or [""]
        told = error.code == 1 and lines[-1].startswith("error: ") and "template" in lines[-1]
        report.check(told, f"{name} from a file: exit code {error.code}: {lines[-1][:200]}", how)
    finally:
        panicked = "panicked at" in server.log()
        report.check(not panicked, f"{name} from a file: a panic in the log", how)
        server.kill()
