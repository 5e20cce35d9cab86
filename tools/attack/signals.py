"""Signals at bad moments: while streams run, while the model loads, twice.

Knows exit codes and what a stream's end is.
"""

import asyncio
import json
import signal
from pathlib import Path

from .client import Connection, ask, encode, request_bytes
from .report import Report
from .server import Server
from .stage import CHAT, COMPLETIONS, KNOWN_QUESTION, Options, Stage

LONG = {"prompt": "Once upon a time", "max_tokens": 600, "temperature": 0, "ignore_eos": True, "stream": True}


class Reader:
    """A stream that is read to its end in the background."""

    def __init__(self, port: int):
        self.port = port
        self.text = ""
        self.finish: str | None = None
        self.done = False
        self.started = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            connection = await Connection.open(self.port)
            connection.send(request_bytes("POST", COMPLETIONS, encode(LONG), {"Content-Type": "application/json"}))
            _, headers = await connection.head()
            async for event in connection.events(headers):
                if event == "[DONE]":
                    self.done = True
                    break
                for choice in json.loads(event).get("choices", []):
                    self.text += choice["text"]
                    self.finish = choice["finish_reason"] or self.finish
                    self.started.set()
            connection.close()
        except (OSError, EOFError, ValueError):
            pass
        self.started.set()


async def run(options: Options, report: Report) -> None:
    for number in (signal.SIGTERM, signal.SIGINT)[: options.scale(2, 1)]:
        await _drain(options, report, number)
        await _twice(options, report, number)
        await _while_loading(options, report, number)
    await _killed(options, report)
    await _beside_idle(options, report)
    await _harmless(options, report)


async def _server(options: Options) -> Server:
    return await Server(options.binary, options.directory, model=options.model).ready()


async def _readers(server: Server, count: int) -> list[Reader]:
    readers = [Reader(server.port) for _ in range(count)]
    await asyncio.gather(*(asyncio.wait_for(reader.started.wait(), 60) for reader in readers))
    return readers


async def _drain(options: Options, report: Report, number: signal.Signals) -> None:
    """The first signal: running streams finish, new requests are refused, then the process ends with 0."""
    server = await _server(options)
    whole = await ask(server.port, COMPLETIONS, LONG | {"stream": False})
    alone = whole.json()["choices"][0]["text"] if whole.status == 200 else whole.short()
    readers = await _readers(server, 6)
    children = server.children()
    server.signal(number)
    report.count("signals")
    how = f"{number.name} while 6 streams run"
    await asyncio.sleep(0.05)
    late = await ask(server.port, COMPLETIONS, {"prompt": "a", "max_tokens": 1}, timeout=30)
    report.check(late.status in (503, 0), f"{how}: a late request gets {late.short()}", how)
    code = await server.ended(120)
    report.check(code == 0, f"{how}: exit code {code}", how)
    await asyncio.wait([reader.task for reader in readers], timeout=10)
    for reader in readers:
        ended = reader.done and reader.finish == "length"
        report.check(
            ended, f"{how}: a stream ended without its end: {reader.finish}, {len(reader.text)} characters", how
        )
        report.check(reader.text == alone, f"{how}: a stream's text differs from the whole answer's", how)
    report.check("panicked at" not in server.log(), f"{how}: a panic in the log", how)
    await _no_orphans(report, how, children)
    server.kill()


async def _no_orphans(report: Report, how: str, children: set[int]) -> None:
    """What the server started ends with it."""
    for _ in range(50):
        left = [child for child in children if Path(f"/proc/{child}").exists()]
        if not left:
            return
        await asyncio.sleep(0.1)
    report.check(False, f"{how}: {len(left)} processes that the server started go on without it", how)


async def _killed(options: Options, report: Report) -> None:
    """Nothing of the server goes on after it is killed."""
    server = await _server(options)
    await ask(server.port, CHAT, KNOWN_QUESTION)
    children = server.children()
    server.kill()
    report.count("signals")
    await _no_orphans(report, "SIGKILL after a chat", children)


async def _twice(options: Options, report: Report, number: signal.Signals) -> None:
    """The second signal ends the process at once."""
    server = await _server(options)
    await _readers(server, 6)
    how = f"{number.name} twice while 6 streams run"
    server.signal(number)
    await asyncio.sleep(0.1)
    server.signal(number)
    report.count("signals", 2)
    code = await server.ended(3)
    report.check(code == 128 + number, f"{how}: exit code {code}, expected {128 + number}", how)
    server.kill()


async def _while_loading(options: Options, report: Report, number: signal.Signals) -> None:
    """A signal before the model is ready, at several moments: an end, soon, never with a crash."""
    for wait in (0.0, 0.005, 0.02, 0.05):
        server = Server(options.binary, options.directory, model=options.model)
        await asyncio.sleep(wait)
        server.signal(number)
        report.count("signals")
        code = await server.ended(30)
        # Before the handler is there, the signal's own effect is right.
        right = code in (0, 128 + number, -number)
        report.check(right, f"{number.name} {wait} s after the start: exit code {code}: {server.log()[-200:]!r}")
        server.kill()


async def _beside_idle(options: Options, report: Report) -> None:
    """Idle connections, half requests and unread answers do not hold the process for long."""
    server = await _server(options)
    connections = [await Connection.open(server.port, receive_buffer=2048) for _ in range(60)]
    for i, connection in enumerate(connections):
        match i % 3:
            case 0:
                connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
            case 1:
                body = encode(LONG | {"max_tokens": 300, "logprobs": 20})
                connection.send(request_bytes("POST", COMPLETIONS, body, {"Content-Type": "application/json"}))
    await asyncio.sleep(1)
    server.signal(signal.SIGTERM)
    report.count("signals")
    code = await server.ended(60)
    report.check(code == 0, f"SIGTERM beside idle, half and unread connections: exit code {code}")
    for connection in connections:
        connection.close(reset=True)
    server.kill()


async def _harmless(options: Options, report: Report) -> None:
    """Signals that ask for nothing: a terminal that goes away, a pipe that closes, a window that changes."""
    async with Stage(options, report) as stage:
        for number in (signal.SIGPIPE, signal.SIGWINCH, signal.SIGCONT):
            stage.server.signal(number)
            report.count("signals")
            await asyncio.sleep(0.05)
            await stage.well(f"signal {number.name}")
