"""Texts that are hard to tokenize, to detokenize or to find stop strings in.

Knows Unicode, not the tokenizer's tables.
"""

import asyncio
import time
import unicodedata

from .bystanders import Bystanders
from .client import ask, slowest_probe
from .report import Report, curl, snippet
from .stage import CHAT, COMPLETIONS, Options, Stage

# What any text may take to be tokenized or refused, on a busy machine.
SECONDS = 60

# How long a probe may wait beside it.
PROBE_SECONDS = 5

TEXTS: dict[str, str] = {
    "nothing but spaces": '" " * 1_000_000',
    "spaces of all kinds": '" \\t\\u00a0\\u2003\\u3000" * 200_000',
    "newlines": '"\\n" * 1_000_000',
    "newlines and spaces": '"\\n " * 500_000',
    "one letter": '"a" * 1_000_000',
    "apostrophes": '"\'" * 1_000_000',
    "contractions": '"\'s\'t\'re" * 200_000',
    "digits": '"1" * 1_000_000',
    "punctuation": '"!" * 1_000_000',
    "combining accents": '"e" + "\\u0301" * 500_000',
    "family emoji": '"\\U0001f468\\u200d\\U0001f469\\u200d\\U0001f467" * 100_000',
    "zero width joiners": '"\\u200d" * 500_000',
    "right to left marks": '"\\u202e\\u2066" * 200_000',
    "nulls": '"\\0" * 1_000_000',
    "replacement characters": '"\\ufffd" * 500_000',
    "the last code point": '"\\U0010ffff" * 250_000',
    "noncharacters": '"\\uffff\\ufffe\\ufdd0" * 200_000',
    "hangul to compose": '"\\u1112\\u1161\\u11ab" * 200_000',
    "notes that grow, and digits": '"\\U0001d1601" * 300_000',
    "line ends and digits": '"\\r1" * 500_000',
    "ligatures that grow": '"\\ufdfa" * 300_000',
    "special tokens": '"<|im_start|>" * 100_000',
    "beginnings of special tokens": '"<|im_sta" * 150_000',
    "special tokens in one another": '"<|im_<|im_start|>start|>" * 50_000',
    "a long word of pairs": '"ab" * 500_000',
    "letters without end, then a space": '"x" * 999_999 + " "',
}  # fmt: skip

# Stop strings that end in the middle of characters, tokens and each other.
STOPS: list[list[str]] = [
    ["\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")],
    ["é", "e\u0301"],
    ["\ufffd"],
    ["\u200d"],
    ["\0"],
    ["a" * 1000],
    ["dog", "do", "og", "g"],
    ["\n", "\n\n", " \n"],
    ["<|im_end|>"],
    [" "] * 4,
    ["Once upon a time"],
]

# Byte tokens of a byte-level vocabulary are its first 256: halves of characters in any order.
PIECES = "list(range(256)) * 4"


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        for name in list(TEXTS)[:: options.scale(1, 10)]:
            await _text(stage, name)
        await stage.well("hard texts")
        await _many_answers(stage)
        await stage.well("many answers to tokens that do not show")
        await _round_trips(stage)
        async with Bystanders(stage, "beside hard stop strings"):
            for stop in STOPS[:: stage.options.scale(1, 3)]:
                await _stop(stage, stop)
            await _halves(stage)
            await _odd_numbers(stage)
            await _odd_ids(stage)
        await stage.well("hard stop strings")


async def _text(stage: Stage, name: str) -> None:
    """Tokenized or refused in bounded time, and the server answers others meanwhile."""
    for path, expression in (
        ("/tokenize", f'{{"prompt": {TEXTS[name]}}}'),
        (CHAT, f'{{"messages": [{{"role": "user", "content": {TEXTS[name]}}}], "max_tokens": 1}}'),
    ):
        attack = asyncio.create_task(stage.attack(name, path, expression, timeout=SECONDS))
        slowest = await slowest_probe(stage.port, [attack], SECONDS)
        answer, how = await attack
        right = answer.status == 200 if path == "/tokenize" else answer.status == 400
        # A server may bound the text that it tokenizes.
        right |= 400 <= answer.status < 500
        stage.report.check(right, f"{name}: {answer.short()[:200]}", how)
        stage.report.check(slowest < PROBE_SECONDS, f"{name}: /health took {slowest:.1f} s beside it", how)


async def _many_answers(stage: Stage) -> None:
    """Each of many answers to a long prompt of tokens that do not show looks for what stands before it; the clients leave soon."""
    expression = '{"prompt": [[4095] * 4000] * 4, "n": 128, "max_tokens": 1}'
    body, count = eval(expression), stage.options.scale(40, 12)
    attacks = [asyncio.create_task(ask(stage.port, COMPLETIONS, body, timeout=0.15)) for _ in range(count)]
    stage.report.count("clients", count)
    slowest = await slowest_probe(stage.port, attacks, SECONDS)
    how = f"{snippet(COMPLETIONS, expression)}   {count} times, each client leaving after 0.15 s"
    stage.report.check(slowest < PROBE_SECONDS, f"many answers: /health took {slowest:.1f} s beside them", how)
    began = time.monotonic()
    # What they asked for fills the engine, until it has seen that they are gone.
    while (answer := await ask(stage.port, COMPLETIONS, {"prompt": [5], "max_tokens": 1})).status == 429:
        if not stage.report.check(time.monotonic() - began < SECONDS, f"many answers: still {answer.short()[:200]}", how):
            break
        await asyncio.sleep(0.1)


async def _round_trips(stage: Stage) -> None:
    """A text of all kinds of characters comes back as it was, composed as the tokenizer composes it."""
    rng = stage.random
    ranges = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    for _ in range(stage.options.scale(200, 20)):
        text = "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 60)))
        body = {"prompt": text}
        answer = await ask(stage.port, "/tokenize", body)
        tokens = answer.json()["tokens"] if answer.status == 200 else []
        back = await ask(stage.port, "/detokenize", {"tokens": tokens})
        stage.report.count("requests", 2)
        same = back.status == 200 and _composed(back.json()["prompt"]) == _composed(text)
        stage.report.check(same, "a text does not come back", curl("/tokenize", body))


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


async def _stop(stage: Stage, stop: list[str]) -> None:
    """A stop string is never in the text, whole and streamed texts are equal, and nothing hangs."""
    body = {
        "prompt": "Once upon a time",
        "max_tokens": 60,
        "temperature": 1.2,
        "seed": 5,
        "ignore_eos": True,
        "stop": stop,
    }
    answer = await ask(stage.port, COMPLETIONS, body)
    stage.report.count("requests")
    how = curl(COMPLETIONS, body)
    if answer.status == 400:
        return
    if not stage.report.check(answer.status == 200, f"stop {stop!r:.100}: {answer.short()}", how):
        return
    text = answer.json()["choices"][0]["text"]
    stage.report.check(not any(s in text for s in stop), f"stop {stop!r:.100} is in the text {text!r}", how)


async def _halves(stage: Stage) -> None:
    """Prompts and forced answers of halves of characters: texts are valid, whole and streamed."""
    bias = "{str(i): 100 for i in range(256)}"
    for expression in (
        f'{{"prompt": {PIECES}, "max_tokens": 1, "echo": True, "logprobs": 2}}',
        f'{{"prompt": "a", "max_tokens": 99, "temperature": 5, "seed": 1, "ignore_eos": True, "logit_bias": {bias}}}',
        f'{{"prompt": "a", "max_tokens": 99, "temperature": 5, "seed": 1, "logit_bias": {bias}, "stop": ["\\ufffd"]}}',
        f'{{"prompt": "a", "max_tokens": 99, "temperature": 5, "seed": 1, "logit_bias": {bias}, "n": 16, "logprobs": 5}}',
    ):
        answer, how = await stage.attack("halves of characters", COMPLETIONS, expression)
        stage.report.check(answer.status == 200, f"halves of characters: {answer.short()[:200]}", how)


async def _odd_numbers(stage: Stage) -> None:
    """Numbers at the edges of their types: each is used or refused, and a seed means the same each time."""
    # As many as the model's length leaves; that takes half a minute.
    most = stage.options.scale(4095, 256)
    for fields in (
        '"seed": -2', '"seed": -9223372036854775808', '"seed": 9223372036854775807', '"temperature": -0.0', '"min_p": -0.0',
        '"max_tokens": 4294967295', '"min_tokens": 4294967295', '"top_k": -9223372036854775808', '"logprobs": 4294967295',
        '"top_k": 9223372036854775807', '"frequency_penalty": -0.0', '"max_tokens": 0', '"n": 0', '"n": 129',
        '"prompt_logprobs": 21', '"prompt_logprobs": -1', f'"max_tokens": {most}, "min_tokens": {most}', '"temperature": 1e-45',
        '"stop_token_ids": [4294967295]', '"logit_bias": {"4294967295": 1}', '"logit_bias": {"+5": 1, "05": -1}',
    ):  # fmt: skip
        expression = f'{{"prompt": "a", "temperature": 1, "max_tokens": 4, {fields}}}'
        answers = [await stage.attack(fields, COMPLETIONS, expression) for _ in range(2)]
        (answer, how), (again, _) = answers
        stage.report.check(answer.status in (200, 400), f"{fields}: {answer.short()}", how)
        if "seed" in fields and answer.status == 200:
            same = answer.json()["choices"] == again.json()["choices"]
            stage.report.check(same, f"{fields}: two answers differ", how)


async def _odd_ids(stage: Stage) -> None:
    """A request's own id comes back in the answer's JSON and nowhere else: it makes no header and no line of the log."""
    mark = "X-Injected: 1"
    for value in (f"a\r\n{mark}", f"a\n2026-01-01T00:00:00Z ERROR {mark}", "\0\x1b[31m", "é" * 50, '"}', "", " "):
        body = {"prompt": "a", "max_tokens": 1, "request_id": value}
        # A name that nobody knows is refused, and written nowhere either.
        unknown = await ask(stage.port, COMPLETIONS, {**body, f"unknown\n{mark}": 1})
        stage.report.check(unknown.status == 400, f"an unknown field: {unknown.short()}", curl(COMPLETIONS, body))
        answer = await ask(stage.port, COMPLETIONS, body)
        stage.report.count("requests", 2)
        how = curl(COMPLETIONS, body)
        stage.report.check(answer.status in (200, 400), f"request_id {value!r}: {answer.short()}", how)
        clean = "x-injected" not in answer.headers and f"\n{mark}" not in stage.server.log()
        stage.report.check(
            clean and "\x1b" not in stage.server.log(), f"request_id {value!r} writes headers or log lines", how
        )
        if answer.status == 200:
            right = answer.json()["id"].endswith(value)
            stage.report.check(right, f"request_id {value!r} comes back as {answer.json()['id']!r}", how)
