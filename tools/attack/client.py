"""A small HTTP/1.1 client that can also misbehave. Knows bytes on a socket, not what the server means by them."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

JSON = {"Content-Type": "application/json"}

# Stand in for a status where there is none.
CLOSED = 0
TIMEOUT = -1

# More of a body than this is counted and thrown away.
KEEP = 64 << 20


@dataclass
class Answer:
    """What came back: a status, or CLOSED or TIMEOUT."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    size: int = 0

    def json(self) -> Any:
        """The body; None where it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def error(self) -> str | None:
        """The message of OpenAI's error object; None where the body is not one."""
        body = self.json()
        if not isinstance(body, dict) or not isinstance(body.get("error"), dict):
            return None
        message = body["error"].get("message")
        return message if isinstance(message, str) else None

    def short(self) -> str:
        """The answer in a line."""
        names = {CLOSED: "connection closed", TIMEOUT: "no answer in time"}
        status = names.get(self.status, f"status {self.status}")
        return f"{status}: {self.body[:200]!r}" if self.body else status


class Connection:
    """A socket to the server, with what was read from it and not used yet."""

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self.buffer = bytearray()
        self.sending: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, port: int, receive_buffer: int | None = None) -> "Connection":
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def _send(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        except (OSError, ValueError):
            pass  # The server's answer, or its silence, is what counts.

    def send(self, data: bytes) -> asyncio.Task[None]:
        """Sends in the background: a server may answer before it has read everything."""
        task = asyncio.create_task(self._send(data))
        self.sending.add(task)
        task.add_done_callback(self.sending.discard)
        return task

    async def more(self) -> bool:
        """Reads once; False at the end."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 18)
        except (OSError, ValueError):
            return False
        self.buffer += data
        return bool(data)

    async def take_until(self, mark: bytes) -> bytes:
        while (end := self.buffer.find(mark)) < 0:
            if not await self.more():
                raise EOFError
        found = bytes(self.buffer[:end])
        del self.buffer[: end + len(mark)]
        return found

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer; interim answers (1xx) are skipped."""
        while True:
            lines = (await self.take_until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ")[1])
            if status >= 200:
                fields = (line.partition(":") for line in lines[1:])
                return status, {name.strip().lower(): value.strip() for name, _, value in fields}

    async def pieces(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrives."""
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await self.take_until(b"\r\n")).split(b";")[0], 16):
                while len(self.buffer) < size + 2:
                    if not await self.more():
                        raise EOFError
                yield bytes(self.buffer[:size])
                del self.buffer[: size + 2]
            await self.take_until(b"\r\n")
            return
        left = int(headers.get("content-length", 0))
        while left:
            if not self.buffer and not await self.more():
                raise EOFError
            piece = bytes(self.buffer[:left])
            del self.buffer[: len(piece)]
            left -= len(piece)
            yield piece

    async def answer(self, has_body: bool = True) -> Answer:
        """The next whole answer."""
        try:
            status, headers = await self.head()
            body, size = bytearray(), 0
            if has_body:
                async for piece in self.pieces(headers):
                    size += len(piece)
                    if size <= KEEP:
                        body += piece
            return Answer(status, headers, bytes(body), size)
        except (EOFError, ValueError, IndexError):
            return Answer(CLOSED, body=bytes(self.buffer))

    async def events(self, headers: dict[str, str]) -> AsyncIterator[str]:
        """The data of server-sent events as they arrive."""
        text = bytearray()
        async for piece in self.pieces(headers):
            text += piece
            while (end := text.find(b"\n\n")) >= 0:
                event = bytes(text[:end])
                del text[: end + 2]
                if event.startswith(b"data: "):
                    yield event[6:].decode()

    def close(self, reset: bool = False) -> None:
        """Closes; with `reset` at once and rudely, so that the server's next write fails."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        for task in self.sending:
            task.cancel()
        self.socket.close()

    async def leave(self) -> None:
        """Closes rudely in the middle of what is being sent."""
        for task in list(self.sending):
            task.cancel()
        # Else the loop would go on to watch a number that the next socket gets.
        await asyncio.gather(*self.sending, return_exceptions=True)
        self.close(reset=True)


def encode(body: Any) -> bytes:
    """A body as bytes: text and bytes as they are, anything else as JSON."""
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def texts_within_texts(levels: int = 60, depth: int = 120) -> str:
    """JSON that holds JSON as the text of the key that serde_json reserves for itself, and so on: a reader for each level."""

    def quote(level: int) -> str:
        return '"' if level == 0 else "\\" + "u005c" * (level - 1) + "u0022"

    opened = ["[" * depth + "{" + quote(i) + "$serde_json::private::RawValue" + quote(i) + ":" + quote(i) for i in range(levels)]
    closed = [quote(i) + "}" + "]" * depth for i in reversed(range(levels))]
    return "".join([*opened, "0", *closed])


def request_bytes(method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    """A well-formed request, except for what `headers` and `path` say."""
    fields = {"Host": "localhost", **(headers or {})}
    if body or method == "POST":
        fields.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


async def ask(
    port: int,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 60,
) -> Answer:
    """One request on a connection of its own: POST with a JSON body, GET without."""
    return await ask_raw(port, _whole(path, body, method, headers), timeout=timeout, has_body=method != "HEAD")


async def slowest_probe(port: int, attacks: list[asyncio.Task[Any]], timeout: float) -> float:
    """Seconds that the slowest answer of /health took, of those asked for until all attacks are done."""
    slowest = 0.0
    while not all(attack.done() for attack in attacks):
        began = time.monotonic()
        await ask(port, "/health", timeout=timeout)
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.05)
    return slowest


def _whole(path: str, body: Any, method: str | None, headers: dict[str, str] | None) -> bytes:
    data = b"" if body is None else encode(body)
    method = method or ("GET" if body is None else "POST")
    return request_bytes(method, path, data, {**JSON, "Connection": "close", **(headers or {})})


async def ask_raw(port: int, data: bytes, *, timeout: float = 60, has_body: bool = True) -> Answer:
    """Sends bytes as they are and reads one answer."""
    connection = None
    try:
        async with asyncio.timeout(timeout):
            connection = await Connection.open(port)
            connection.send(data)
            return await connection.answer(has_body)
    except TimeoutError:
        return Answer(TIMEOUT)
    except OSError:
        return Answer(CLOSED)
    finally:
        if connection:
            connection.close()
