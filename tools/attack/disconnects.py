"""Clients that leave at random moments, and clients that never read, beside clients that must not notice.

Knows streams.
"""

import asyncio
from typing import Any

from .bystanders import Bystanders
from .client import Connection, ask, encode, request_bytes
from .report import Report
from .stage import CHAT, COMPLETIONS, Options, Stage

HOW = "disconnects.py: see _leave; the seed fixes what each client asks and when it leaves"


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        for parallel in (8, 64):
            # The queue takes 1,088 requests: a crowd with n may fill it, and then the next is told so.
            async with Bystanders(stage, f"beside {parallel} leaving clients", HOW, may_refuse=True) as bystanders:
                left = iter(range(options.scale(500, 25)))
                await asyncio.gather(*(_come_and_go(stage, left) for _ in range(parallel)))
            wrong = f"bystanders were refused {bystanders.refused} times"
            report.check(parallel > 8 or not bystanders.refused, wrong, HOW)
            await stage.well(f"{parallel} leaving clients", HOW)
        await _never_read(stage, options.scale(80, 24))
        await _leave_large_work(stage, options.scale(60, 12))
    async with Stage(options, report, flags=("--trust-request-chat-template",)) as stage:
        await _leave_slow_templates(stage, options.scale(700, 100))


def _question(stage: Stage) -> tuple[str, dict[str, Any]]:
    rng = stage.random
    body: dict[str, Any] = {
        "max_tokens": rng.choice((1, 5, 50, 200)),
        "ignore_eos": True,
        "n": rng.choice((1, 1, 1, 2, 4)),
    }
    body["stream"] = rng.random() < 0.7
    body["temperature"] = rng.choice((0, 0.7, 1.5))
    if rng.random() < 0.3:
        body["messages"] = [{"role": "user", "content": "x " * rng.choice((1, 50, 300))}]
        return CHAT, body | {"logprobs": True, "top_logprobs": 5}
    # Some share their beginning, so that blocks of the prefix cache have several holders when one leaves.
    start = rng.choice((list(range(200)), [rng.randrange(4000) for _ in range(rng.choice((1, 30, 300)))]))
    return COMPLETIONS, body | {"prompt": start}


async def _come_and_go(stage: Stage, left: Any) -> None:
    for _ in left:
        stage.report.count("clients")
        path, body = _question(stage)
        data = request_bytes("POST", path, encode(body), {"Content-Type": "application/json", "Connection": "close"})
        # What follows a request waits in the connection, in front of its end.
        data += stage.random.choice((b"", b"", b"\r\n", b"G", data))
        # Before the request is whole, while it is queued or prefilled, after some of the answer, or never.
        moment = stage.random.choice(("sending", "waiting", "reading", "never"))
        delay, pieces = stage.random.random() * 0.1, stage.random.randrange(1, 20)
        try:
            async with asyncio.timeout(120):
                await _leave(stage, data, moment, delay, pieces)
        except TimeoutError:
            stage.report.check(False, f"a client that leaves {moment} got no answer in time", HOW)
        except (OSError, EOFError):
            if not await stage.revive(f"a client that leaves {moment}", HOW):
                return


async def _leave(stage: Stage, data: bytes, moment: str, delay: float, pieces: int) -> None:
    connection = await Connection.open(stage.port)
    try:
        if moment == "sending":
            await connection.send(data[: stage.random.randrange(1, len(data))])
            return
        await connection.send(data)
        if moment == "never":
            answer = await connection.answer()
            right = answer.status in (200, 429) or answer.status == 400
            stage.report.check(right, f"a client that stays gets {answer.short()}", HOW)
        elif moment == "reading":
            for _ in range(pieces):
                if not await connection.more():
                    break
        else:
            await asyncio.sleep(delay)
    finally:
        connection.close(reset=stage.random.random() < 0.5)


async def _leave_large_work(stage: Stage, count: int) -> None:
    """Clients that send long conversations and leave at once: what nobody waits for is not done, and its memory is counted."""
    body = encode({"messages": [{"role": "user", "content": "Hi"}] * 300_000, "max_tokens": 1})
    data = request_bytes("POST", CHAT, body, {"Content-Type": "application/json"})
    how = f"{count} times: a chat of 300,000 messages whose client leaves after 0.12 s"
    stage.report.count("clients", count)
    before = stage.server.rss()
    most = 0
    for _ in range(count):
        connection = await Connection.open(stage.port)
        connection.send(data)
        await asyncio.sleep(0.12)
        await connection.leave()
        most = max(most, stage.server.rss() - before)
    stage.report.check(most < 768 << 20, f"{how}: {most >> 20} MiB more", how)
    await _answered_soon(stage, how)
    await stage.well("large work that nobody waits for", how)


async def _leave_slow_templates(stage: Stage, count: int) -> None:
    """Clients that bring slow templates and leave at once."""
    template = "{% for a in range(99999) %}" * 4 + "x" + "{% endfor %}" * 4
    body = encode({"messages": [{"role": "user", "content": "Hi"}], "chat_template": template, "max_tokens": 1})
    data = request_bytes("POST", CHAT, body, {"Content-Type": "application/json"})
    how = f"--trust-request-chat-template, {count} times: a template of four nested loops whose client leaves after 4 ms"
    stage.report.count("clients", count)
    for _ in range(count):
        connection = await Connection.open(stage.port)
        connection.send(data)
        await asyncio.sleep(0.004)
        await connection.leave()
    await _answered_soon(stage, how)
    await stage.well("slow templates that nobody waits for", how)


async def _answered_soon(stage: Stage, how: str) -> None:
    """Those that stay are served within what the work in progress takes: a template may render for ten seconds."""
    question = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for path, body in ((COMPLETIONS, {"prompt": "a", "max_tokens": 1}), (CHAT, question)):
        answer = await ask(stage.port, path, body, timeout=15)
        stage.report.check(answer.status == 200, f"after {how}: {path} gets {answer.short()}", how)


async def _never_read(stage: Stage, count: int) -> None:
    """Streams that nobody reads: their buffers are bounded, and the engine goes on for the others."""
    body = encode({"prompt": "One day", "max_tokens": 1200, "ignore_eos": True, "stream": True, "logprobs": 20})
    data = request_bytes("POST", COMPLETIONS, body, {"Content-Type": "application/json"})
    how = f"{count} streams with max_tokens 1200 and logprobs 20 whose clients never read"
    stage.report.count("clients", count)
    before = stage.server.rss()
    stage.server.reset_peak()
    async with Bystanders(stage, f"beside {how}", how):
        connections = [await Connection.open(stage.port, receive_buffer=2048) for _ in range(count)]
        for connection in connections:
            connection.send(data)
        await asyncio.sleep(stage.options.scale(5, 2))
    held = (stage.server.peak() - before) / count
    # A generous bound on one answer in any form: 1,200 tokens of 21 names and numbers.
    stage.report.check(held < 4 << 20, f"{how}: {held / 2**20:.1f} MiB are held for each", how)
    for connection in connections:
        connection.close(reset=True)
    await stage.well(how, how)
