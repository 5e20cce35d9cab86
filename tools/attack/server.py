"""Starts the real binary and watches it: its log, its memory, its end. Knows processes, not what they are asked."""

import asyncio
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

# What a server under attack may map. Reached only by an attack that works; it keeps the machine alive then.
ADDRESS_SPACE = 8 << 30

START_SECONDS = 120


class StartError(Exception):
    """The server ended, or did not open its port, instead of starting."""

    def __init__(self, message: str, code: int | None):
        super().__init__(message)
        self.code = code


class Server:
    """A running `vllm-apple serve`."""

    def __init__(
        self,
        binary: Path,
        directory: Path,
        *flags: str,
        model: Path | None = None,
        address_space: int | None = ADDRESS_SPACE,
        open_files: int | None = None,
        kv_cache: str = "64MiB",
        environment: dict[str, str] | None = None,
    ):
        self.log_path = directory / f"log-{time.monotonic_ns()}"
        command = [str(binary), "serve", *([str(model)] if model else []), "--port", "0"]
        command += ["--kv-cache-memory", kv_cache, *flags]

        def limit() -> None:
            if address_space:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
            if open_files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        cache = {"XDG_CACHE_HOME": str(directory / "cache"), "RUST_BACKTRACE": "0"}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **cache, **(environment or {})},
                preexec_fn=limit,
            )
        self.port = 0

    async def ready(self, seconds: float = START_SECONDS) -> "Server":
        """Waits until the model is loaded.

        Raises StartError if the server ends before.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            log = self.log()
            if found := re.search(r"listening on http://[0-9.]+:(\d+)", log):
                self.port = int(found[1])
            if "the model is ready" in log:
                return self
            if not self.alive():
                # Not what was read before it ended: its last words may be missing there.
                raise StartError(self.log()[-2000:], self.process.returncode)
            await asyncio.sleep(0.01)
        self.kill()
        raise StartError(f"not ready after {seconds} s:\n{self.log()[-2000:]}", None)

    async def listening(self, seconds: float = START_SECONDS) -> None:
        """Waits until the port is open, whether or not the model is loaded."""
        deadline = time.monotonic() + seconds
        while "listening on" not in self.log() and self.alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.001)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def last_words(self) -> str:
        """The last lines of the log that are no plain messages: an error, a panic, a failed allocation."""
        lines = [line for line in self.log().splitlines() if " INFO " not in line and " WARN " not in line]
        return repr(" / ".join(lines[-3:])[-300:])

    def alive(self) -> bool:
        return self.process.poll() is None

    def children(self) -> set[int]:
        """Processes that it has started and that run."""
        try:
            tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
            return {int(child) for task in tasks for child in (task / "children").read_text().split()}
        except OSError:
            return set()

    def _processes(self) -> set[int]:
        """It and what it has started."""
        return {self.process.pid} | self.children()

    def _sum(self, name: str) -> int:
        """Bytes of a line of /proc/PID/status, of all its processes together."""
        total = 0
        for process in self._processes():
            try:
                text = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            found = re.search(rf"{name}:\s+(\d+) kB", text)
            total += int(found[1]) << 10 if found else 0
        return total

    def rss(self) -> int:
        """Bytes in memory now."""
        return self._sum("VmRSS")

    def held(self) -> int:
        """Bytes in memory now that are no file's: its processes share those."""
        return self._sum("RssAnon")

    def peak(self) -> int:
        """Most bytes in memory since reset_peak, of processes that still run."""
        return self._sum("VmHWM")

    def reset_peak(self) -> None:
        for process in self._processes():
            try:
                Path(f"/proc/{process}/clear_refs").write_text("5")
            except OSError:
                pass  # The process is gone, which the next check says.

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None if it still runs."""
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return self.process.poll()

    def kill(self) -> None:
        if self.alive():
            self.process.kill()
        self.process.wait()

    async def stop(self) -> int | None:
        """Asks it to stop; the exit code, or None if it had to be killed."""
        if self.alive():
            self.signal(signal.SIGTERM)
        code = await self.ended(30)
        self.kill()
        return code
