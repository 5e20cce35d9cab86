"""Broken and hostile HTTP on raw sockets.

Knows the protocol's rules; the server may refuse or close, but not hang or fail.
"""

import asyncio
from collections.abc import Iterator

from .bystanders import Bystanders
from .client import CLOSED, TIMEOUT, Connection, ask, encode, request_bytes
from .report import Report, raw
from .stage import COMPLETIONS, Options, Stage

BODY = encode({"prompt": "a b c", "max_tokens": 1})
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def broken() -> Iterator[bytes]:
    """Requests after which the sender closes its side: each must be refused or dropped."""
    # Request lines.
    yield from (
        b"\r\n\r\n",
        b"\0" * 100,
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
    )
    yield from (
        b"GET  /  HTTP/1.1\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
    )
    yield from (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    )
    yield from (
        b"x" * 1_000_000,
        b"GET / HTTP/1.1\n\n",
        b"GET / HTTP/1.1\r\r",
        b"SSH-2.0-x\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    )
    # Headers.
    yield from (
        GET + b"no colon\r\n\r\n",
        GET + b": no name\r\n\r\n",
        GET + b"A B: c\r\n\r\n",
        GET + b"a: b\r\n folded\r\n\r\n",
    )
    yield from (GET + b"a: \0\r\n\r\n", GET + b"a\xff: b\r\n\r\n", GET + b"a: " + b"b" * 1_000_000 + b"\r\n\r\n")
    yield from (GET + b"".join(b"h%d: v\r\n" % i for i in range(count)) + b"\r\n" for count in (99, 101, 1000, 50_000))
    yield from (b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", GET + b"Host: y\r\n\r\n")
    # Lengths.
    for length in (
        b"-1",
        b"+5",
        b"0x10",
        b"1e3",
        b"",
        b"a",
        b"18446744073709551616",
        b"18446744073709551615",
        b"5, 6",
        b"5 5",
    ):
        yield HEAD + b"Content-Length: " + length + b"\r\n\r\n" + BODY
    yield HEAD + LENGTH + b"Content-Length: 1\r\n\r\n" + BODY
    yield HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n"
    yield HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + BODY
    yield from (
        HEAD + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + BODY
        for coding in (b"gzip", b"chunked, gzip", b"xchunked")
    )
    yield HEAD + b"Content-Length: 100000\r\n\r\n" + BODY
    yield HEAD + b"Content-Length: 17000000\r\n\r\n"
    yield HEAD + b"Content-Length: 3\r\n\r\n" + BODY
    # Chunks.
    for size in (b"-1", b"g", b"", b"ffffffffffffffff", b"10000000000000000", b"0x5", b"5 5", b"\0", b"f" * 1000):
        yield CHUNKED + size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
    yield CHUNKED + b"5;" + b"e" * 1_000_000 + b"\r\nabcde\r\n0\r\n\r\n"
    yield CHUNKED + b"5\r\nabcdeX\r\n0\r\n\r\n"
    yield CHUNKED + b"5\r\nabcde"
    yield CHUNKED + b"0\r\n" + b"trailer: x\r\n" * 50_000 + b"\r\n"
    yield CHUNKED + b"1\r\n{\r\n" * 200_000 + b"0\r\n\r\n"
    yield HEAD + b"Expect: 100-continue\r\n" + LENGTH + b"\r\n"
    yield HEAD + b"Expect: 200-maybe\r\n" + LENGTH + b"\r\n" + BODY
    yield GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    yield GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        async with Bystanders(stage, "beside broken HTTP"):
            for data in broken():
                await _broken(stage, data)
            for _ in range(options.scale(300, 30)):
                await _broken(stage, _garbled(stage))
        await stage.well("broken HTTP")
        await _well_formed(stage)
        await _pipeline(stage, options.scale(500, 100))
        await _smuggling(stage)
        await _large_headers(stage, options.scale(500, 100))
        await _slow(stage, options.scale(400, 50))
        await stage.well("slow clients")
    limits = {"open_files": 200}
    async with Stage(options, report, limits=limits) as stage:
        await _idle_connections(stage, 260)


async def _broken(stage: Stage, data: bytes) -> None:
    """Sends, closes the sending side, and reads all: only refusals and answers may come, and an end."""
    stage.report.count("requests")
    read = b""
    try:
        async with asyncio.timeout(20):
            connection = await Connection.open(stage.port)
            await connection.send(data)
            connection.socket.shutdown(1)
            while await connection.more():
                pass
            read = bytes(connection.buffer)
    except TimeoutError:
        stage.report.check(False, "broken HTTP gets neither an answer nor an end", raw(data))
    except OSError:
        pass
    connection.close()
    wrong = [line for line in read.split(b"\r\n") if line.startswith(b"HTTP/1.1 5")]
    stage.report.check(not wrong, f"broken HTTP gets {wrong[:1]}", raw(data))
    await stage.revive("broken HTTP", raw(data))


def _garbled(stage: Stage) -> bytes:
    """A right request with some bytes wrong anywhere."""
    rng = stage.random
    data = bytearray(HEAD + LENGTH + b"\r\n" + BODY)
    for _ in range(rng.choice((1, 2, 5, 20))):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.choice((b"", b"\r\n", b"\0", b":", b" ", bytes([rng.randrange(256)])))
    return bytes(data)


async def _well_formed(stage: Stage) -> None:
    """Unusual requests that are legal and must be answered."""
    chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in BODY)
    legal = {
        "one byte per chunk": CHUNKED + chunks + b"0\r\ntrailer: x\r\n\r\n",
        "HTTP/1.0": (HEAD + LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n" + BODY,
        "an empty line before": b"\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
        "an absolute target": (HEAD + LENGTH).replace(b"/v1", b"http://x/v1") + b"\r\n" + BODY,
        "names in capitals": (HEAD + LENGTH).upper().replace(b"/V1/COMPLETIONS", b"/v1/completions") + b"\r\n" + BODY,
    }
    for name, data in legal.items():
        stage.report.count("requests")
        connection = await Connection.open(stage.port)
        connection.send(data)
        answer = await asyncio.wait_for(connection.answer(), 20)
        stage.report.check(answer.status == 200, f"{name}: expected an answer, got {answer.short()}", raw(data))
        connection.close()
    connection = await Connection.open(stage.port)
    connection.send(HEAD + b"Expect: 100-continue\r\n" + LENGTH + b"\r\n")
    interim = await asyncio.wait_for(connection.take_until(b"\r\n\r\n"), 20)
    connection.send(BODY)
    answer = await asyncio.wait_for(connection.answer(), 20)
    right = b" 100 " in interim and answer.status == 200
    stage.report.check(right, f"Expect: 100-continue gets {interim!r}, then {answer.short()}")
    connection.close()


async def _pipeline(stage: Stage, count: int) -> None:
    """Many requests at once on one connection: answers in their order, each to its own request."""
    connection = await Connection.open(stage.port)
    headers = {"Content-Type": "application/json"}
    bodies = [encode({"tokens": [300 + i % 200]}) for i in range(count)]
    texts = [(await ask(stage.port, "/detokenize", body)).json() for body in bodies[:200]]
    connection.send(b"".join(request_bytes("POST", "/detokenize", body, headers) for body in bodies))
    for i in range(count):
        stage.report.count("requests")
        answer = await asyncio.wait_for(connection.answer(), 30)
        if not stage.report.check(answer.json() == texts[i % 200], f"pipelined request {i} gets {answer.short()}"):
            break
    connection.close()
    # A thousand that nobody reads.
    connection = await Connection.open(stage.port)
    connection.send(b"".join(request_bytes("GET", "/metrics") for _ in range(count)))
    await asyncio.sleep(0.3)
    connection.close(reset=True)
    await stage.well("pipelining")


async def _smuggling(stage: Stage) -> None:
    """Where two lengths disagree, the connection must not go on: a proxy before the server may have read the other one."""
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    for name, data in {
        "Content-Length and chunks": HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
        "two Content-Lengths": HEAD + b"Content-Length: 2\r\nContent-Length: %d\r\n\r\n{}" % (2 + len(hidden)) + hidden,
        "Transfer-Encoding: xchunked": HEAD + LENGTH + b"Transfer-Encoding: xchunked\r\n\r\n" + BODY + hidden,
    }.items():
        stage.report.count("requests")
        connection = await Connection.open(stage.port)
        await connection.send(data)
        try:
            async with asyncio.timeout(3):
                while await connection.more():
                    pass
        except TimeoutError:
            pass
        answered = bytes(connection.buffer).count(b'"version"')
        stage.report.check(not answered, f"{name}: the hidden request was answered", raw(data))
        connection.close()


async def _large_headers(stage: Stage, count: int) -> None:
    """Headers that never end: what a connection holds is bounded, and is given back."""
    header = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"h%d: %s\r\n" % (i, b"v" * 4200) for i in range(95))
    how = f"{count} connections that each send a header of {len(header)} bytes without its end"
    before = stage.server.held()
    stage.report.count("clients", count)
    connections = []
    for _ in range(count):
        connection = await Connection.open(stage.port)
        connection.send(header)
        connections.append(connection)
    await asyncio.sleep(0.5)
    held = (stage.server.held() - before) / count
    stage.report.check(held < 128 << 10, f"{how}: {held / 1024:.0f} KiB are held for each", how)
    for connection in connections:
        connection.close(reset=True)
    await stage.well("large headers", how)


async def _slow(stage: Stage, count: int) -> None:
    """Clients that send a byte now and then, and clients that read nothing, beside clients that want answers."""
    connections = [await Connection.open(stage.port, receive_buffer=2048) for _ in range(count)]
    stage.report.count("clients", count)
    stream = encode({"prompt": "One day", "max_tokens": 500, "ignore_eos": True, "stream": True})
    starts = [
        HEAD,
        HEAD + LENGTH + b"\r\n" + BODY[:5],
        CHUNKED + b"5\r\n{",
        request_bytes("POST", COMPLETIONS, stream, {"Content-Type": "application/json"}),
    ]
    async with Bystanders(stage, "beside slow clients"):
        for i, connection in enumerate(connections):
            connection.send(starts[i % 16 // 5])
        for _ in range(10):
            for connection in connections:
                connection.send(b"a")
            await asyncio.sleep(0.1)
    for connection in connections:
        connection.close(reset=True)


async def _idle_connections(stage: Stage, count: int) -> None:
    """More idle connections than the process may have open: somebody new must still be answered, soon."""
    stage.report.count("clients", count)
    idle = [await Connection.open(stage.port) for _ in range(count)]
    how = "ulimit -n 200; vllm-apple serve &  260 silent connections; curl -m 15 http://127.0.0.1:8000/health"
    answer = await ask(stage.port, "/health", timeout=15)
    answered = answer.status not in (CLOSED, TIMEOUT)
    stage.report.check(answered, f"beside {count} idle connections and 200 open files: {answer.short()}", how)
    for connection in idle:
        connection.close(reset=True)
    await asyncio.sleep(1.5)
    await stage.well("idle connections", how)
