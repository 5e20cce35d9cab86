"""What one client can learn of another: the prefix cache under salts. And many connections at once.

Knows usage and streams.
"""

import asyncio
from typing import Any

from .bystanders import Bystanders
from .client import Answer, Connection, ask, encode, request_bytes
from .report import Report, curl
from .stage import CHAT, COMPLETIONS, Options, Stage, fingerprint


def cached(answer: Answer) -> Any:
    """Prompt tokens that came from the prefix cache, or the refusal."""
    body = answer.json()
    return body["usage"]["prompt_tokens_details"]["cached_tokens"] if answer.status == 200 else answer.short()


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        prompt = [stage.random.randrange(4000) for _ in range(64)]
        await _salts(stage, COMPLETIONS, {"prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 2})
        text = " ".join(f"word{stage.random.randrange(10_000)}" for _ in range(40))
        messages = [{"role": "user", "content": text}]
        await _salts(stage, CHAT, {"messages": messages, "max_tokens": 4, "temperature": 0, "logprobs": True})
        await _bad_salts(stage)
        await stage.well("cache salts")
        await _many_connections(stage, options.scale(800, 200))
        await _flood(stage, options.scale(1500, 300))


async def _salts(stage: Stage, path: str, body: dict[str, Any]) -> None:
    """The same prompt under several salts and under none: each finds only its own blocks, and answers are equal."""
    check = stage.report.check
    answer = await ask(stage.port, path, body | {"cache_salt": "warm"})
    if not check(answer.status == 200, f"a request with a cache_salt gets {answer.short()}", curl(path, body)):
        return
    salts: list[dict[str, str]] = [
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"cache_salt": "a\0"},
        {"cache_salt": "é" * 100},
    ]
    first = {}
    for salt in salts:
        how = curl(path, body | salt)
        answer = await ask(stage.port, path, body | salt)
        stage.report.count("requests")
        check(cached(answer) == 0, f"the first request under {salt} has cached tokens: {cached(answer)}", how)
        first[str(salt)] = fingerprint(answer)
    check(len(set(first.values())) == 1, f"{path}: answers differ between salts", curl(path, body))
    for salt in salts:
        how = curl(path, body | salt)
        answer = await ask(stage.port, path, body | salt)
        stage.report.count("requests")
        found = cached(answer)
        check(isinstance(found, int) and found > 0, f"the second request under {salt} has cached tokens: {found}", how)
        check(fingerprint(answer) == first[str(salt)], f"{path}: a cached answer differs", how)


async def _bad_salts(stage: Stage) -> None:
    """A salt is text of some length; what cannot be one is refused."""
    for salt in (1, [], {}, True, ""):
        body = {"prompt": "a b c", "max_tokens": 1, "cache_salt": salt}
        answer = await ask(stage.port, COMPLETIONS, body)
        stage.report.count("requests")
        # vLLM refuses the empty salt; ignoring it is as safe.
        right = answer.status == 400 or (salt == "" and answer.status == 200)
        stage.report.check(right, f"cache_salt {salt!r} gets {answer.short()}", curl(COMPLETIONS, body))
    body = {"prompt": "a b c", "max_tokens": 1, "cache_salt": "x" * 1_000_000}
    answer = await ask(stage.port, COMPLETIONS, body)
    right = answer.status in (200, 400) and answer.size < 4096
    stage.report.check(right, f"a cache_salt of a million letters gets {answer.short()}")


async def _many_connections(stage: Stage, count: int) -> None:
    """Kept connections that each ask now and then, while others want answers."""
    stage.report.count("clients", count)
    connections = [await Connection.open(stage.port) for _ in range(count)]
    data = request_bytes("POST", "/tokenize", encode({"prompt": "a b c"}), {"Content-Type": "application/json"})
    async with Bystanders(stage, f"beside {count} connections"):
        for _ in range(3):
            for connection in connections:
                connection.send(data)
            answers = await asyncio.gather(*(asyncio.wait_for(c.answer(), 60) for c in connections))
            stage.report.count("requests", count)
            bad = [answer for answer in answers if answer.status != 200]
            wrong = f"of {count} kept connections {len(bad)} got no answer: {bad[0].short() if bad else ''}"
            stage.report.check(not bad, wrong, f"{count} connections, each with POST /tokenize three times")
    for connection in connections:
        connection.close()
    await stage.well(f"{count} connections")


async def _flood(stage: Stage, count: int) -> None:
    """More requests at once than the queue takes: each is answered or told to come back, and nothing is lost."""
    body = {"prompt": "a b c", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    alone = fingerprint(await ask(stage.port, COMPLETIONS, body))
    gate = asyncio.Semaphore(900)  # Our own open files.

    async def one() -> Answer:
        async with gate:
            return await ask(stage.port, COMPLETIONS, body, timeout=120)

    answers = await asyncio.gather(*(one() for _ in range(count)))
    stage.report.count("requests", count)
    how = f"{count} times at once: {curl(COMPLETIONS, body)}"
    for answer in answers:
        right = fingerprint(answer) == alone or (answer.status in (429, 503) and answer.error is not None)
        stage.report.check(right, f"in a flood of requests: {answer.short()}", how)
    # One request that fills the queue by itself, then the next client.
    many = {"prompt": [[i] for i in range(500)], "n": 128, "max_tokens": 1}
    answer = await ask(stage.port, COMPLETIONS, many)
    stage.report.count("requests")
    refused = 400 <= answer.status < 500
    stage.report.check(refused, f"500 prompts with n = 128 get {answer.short()}", curl(COMPLETIONS, many))
    await stage.well("a flood of requests", how)
