"""One section's server, and what must hold of it after every attack. Knows the demo model's answers, no attack."""

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .client import Answer, ask
from .report import Report, curl, snippet
from .server import Server, StartError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

KNOWN_QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of Norway?"}],
    "temperature": 0,
    "max_tokens": 24,
    "logprobs": True,
    "top_logprobs": 3,
}
KNOWN_ANSWER = "The capital of Norway is Oslo."

# What fits into the KV cache that the servers get.
KV_CACHE_TOKENS = 18_720

# What an idle server may hold above what it held before: what allocators keep.
SANE = 32 << 20


def fingerprint(answer: Answer) -> str:
    """What of an answer must be equal every time: texts, tokens, log-probabilities and reasons, bit for bit."""
    body = answer.json()
    if answer.status != 200 or not isinstance(body, dict):
        return answer.short()
    return json.dumps(body.get("choices"), sort_keys=True)


@dataclass
class Options:
    """How a run was asked for."""

    binary: Path
    directory: Path
    seed: int = 0
    core: bool = False
    model: Path | None = None

    def scale(self, full: int, core: int) -> int:
        return core if self.core else full


@dataclass
class Stage:
    """A server under attack; as a context, it starts and ends it and checks it at the end."""

    options: Options
    report: Report
    flags: tuple[str, ...] = ()
    limits: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.options.seed} {self.report.section}")
        self.known = ""
        self.idle = 0
        self.panics = 0
        self.alone: list[str] = []

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> None:
        options = self.options
        self.server = Server(options.binary, options.directory, *self.flags, model=options.model, **self.limits)
        await self.server.ready()
        self.panics = 0
        answer = await ask(self.port, CHAT, KNOWN_QUESTION)
        known = fingerprint(answer)
        if self.options.model is None:
            body = answer.json() or {}
            text = body["choices"][0]["message"]["content"] if "choices" in body else answer.short()
            self.report.check(text == KNOWN_ANSWER, f"a fresh server answers {text!r}", curl(CHAT, KNOWN_QUESTION))
        same = not self.known or known == self.known
        self.report.check(same, "a fresh server answers otherwise than the one before", curl(CHAT, KNOWN_QUESTION))
        self.known = known
        await self._touch_memory()
        self.idle = self.server.held()

    async def _touch_memory(self) -> None:
        """Fills the KV cache and the room for logits: their pages are not in memory before they are written."""
        if self.options.model is None and not self.options.core:
            prompts = [[(i * 7 + j * (i + 1)) % 4000 for j in range(4000)] for i in range(KV_CACHE_TOKENS // 4000 + 1)]
            answer = await ask(self.port, COMPLETIONS, {"prompt": prompts, "max_tokens": 1, "prompt_logprobs": 1})
            self.report.check(answer.status == 200, f"prompts that fill the KV cache: {answer.short()}")

    async def answers_alone(self, questions: list[tuple[str, dict[str, Any]]]) -> list[str]:
        """What the questions are answered when nobody else asks; always the same questions, so asked once."""
        if not self.alone:
            self.alone = [fingerprint(await ask(self.port, path, body)) for path, body in questions]
        return self.alone

    async def __aenter__(self) -> "Stage":
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.well("everything")
            code = await self.server.stop()
            self.report.check(code == 0, f"the server ended with {code} after SIGTERM")
        else:
            self.server.kill()

    async def revive(self, after: str, how: str) -> bool:
        """Whether the server lives; a dead one is a failure of `after` and is replaced."""
        # A process that aborts answers nobody a moment before it is gone.
        if self.server.alive():
            return True
        code, words = self.server.process.returncode, self.server.last_words()
        self.report.check(False, f"{after}: the server ended with {code}: {words}", how)
        await self.start()
        return False

    async def well(self, after: str, how: str = "", seconds: float = 60) -> bool:
        """Whether the server is as it was: it lives, answers right, runs nothing, has not panicked and keeps no memory."""
        await asyncio.sleep(0.02)
        if not await self.revive(after, how):
            return False
        answer = await ask(self.port, CHAT, KNOWN_QUESTION, timeout=seconds)
        check = self.report.check
        well = check(fingerprint(answer) == self.known, f"{after}: the known question gets {answer.short()}", how)
        well &= check(*await self._metrics(after, seconds), how)
        log = self.server.log()
        panics = log.count("panicked at")
        if panics > self.panics:
            at = log[log.rfind("panicked at") :][:200]
            well &= check(False, f"{after}: {panics - self.panics} panics in the log: {at!r}", how)
            self.panics = panics
        # Without the warm-up of a full run the KV cache and the logits show when they are first used.
        memory = SANE + self.options.scale(0, 64 << 20)
        held = self.server.held()
        for _ in range(20):
            if held <= self.idle + memory:
                break
            await asyncio.sleep(0.1)
            held = self.server.held()
        grown = (held - self.idle) >> 20
        if not check(held <= self.idle + memory, f"{after}: the idle server keeps {grown} MiB more than before", how):
            self.idle = held  # Else every later check would say the same.
            well = False
        return well

    async def _metrics(self, after: str, seconds: float) -> tuple[bool, str]:
        """Whether the engine is idle, which it may become a moment after the last answer."""
        deadline = time.monotonic() + seconds
        while True:
            text = (await ask(self.port, "/metrics", timeout=seconds)).body.decode(errors="replace")
            names = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
            values = [re.search(rf"^vllm:{name}\{{.*\}} (\S+)", text, re.M) for name in names]
            found = dict(zip(names, (float(value[1]) if value else None for value in values), strict=True))
            if all(value == 0 for value in found.values()):
                return True, ""
            if time.monotonic() > deadline or not self.server.alive():
                return False, f"{after}: the engine is not idle: {found}"
            await asyncio.sleep(0.05)

    async def attack(self, name: str, path: str, expression: str, timeout: float = 60) -> tuple[Answer, str]:
        """Sends a body given as a Python expression; the answer and the reproduction."""
        how = snippet(path, expression)
        body = eval(expression)  # Written in this package, so that what is shown is what was sent.
        self.report.count("requests")
        answer = await ask(self.port, path, body, timeout=timeout)
        if answer.status <= 0:
            await asyncio.sleep(0.3)
            await self.revive(name, how)
        return answer, how


__all__ = ["CHAT", "COMPLETIONS", "KNOWN_ANSWER", "KNOWN_QUESTION", "Options", "Stage", "StartError", "fingerprint"]
