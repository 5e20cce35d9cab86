"""Clients that do nothing wrong while others do.

Knows what each was answered alone, and that it must be answered so again.
"""

import asyncio
from typing import Any

from .client import Answer, ask
from .report import curl
from .stage import CHAT, COMPLETIONS, Stage, fingerprint

LOGPROBS = {"logprobs": 3, "ignore_eos": True}
STORY = "Once upon a time there was a small dog who"

# Long enough to share steps with whatever happens; greedy, drawn, penalised, several at once, and with a stop string.
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": STORY, "temperature": 0, "max_tokens": 160, **LOGPROBS}),
    (COMPLETIONS, {"prompt": "The town of", "temperature": 1, "seed": 7, "max_tokens": 120, **LOGPROBS}),
    (COMPLETIONS, {"prompt": "One day", "seed": 3, "n": 2, "max_tokens": 60, "repetition_penalty": 1.1, **LOGPROBS}),
    (COMPLETIONS, {"prompt": list(range(100, 400)), "temperature": 0, "max_tokens": 40, **LOGPROBS}),
    (CHAT, {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, "max_tokens": 120}),
    (COMPLETIONS, {"prompt": STORY, "temperature": 0, "max_tokens": 200, "stop": ["the end", ". The"], **LOGPROBS}),
]

# A full server may say so.
REFUSED = {429, 503}


class Bystanders:
    """As a context: asks everything alone first, then again and again until the end of the block, and compares."""

    def __init__(self, stage: Stage, after: str, how: str = "", copies: int = 1, may_refuse: bool = False):
        self.stage, self.after, self.how = stage, after, how
        self.copies, self.may_refuse = copies, may_refuse
        self.answered = 0
        self.refused = 0
        self.wrong = 0
        self.stopping = False

    async def __aenter__(self) -> "Bystanders":
        self.alone = await self.stage.answers_alone(QUESTIONS)
        self.tasks = [asyncio.create_task(self._go_on(i)) for i in range(len(QUESTIONS)) for _ in range(self.copies)]
        await asyncio.sleep(0.05)
        return self

    async def _go_on(self, index: int) -> None:
        path, body = QUESTIONS[index]
        while not self.stopping and self.wrong < 3:
            server = self.stage.server
            answer = await ask(self.stage.port, path, body, timeout=300)
            if answer.status <= 0:
                await asyncio.sleep(0.5)
            if server is not self.stage.server or not server.alive():
                return  # Its end is a failure of its own.
            if self.may_refuse and answer.status in REFUSED:
                self.refused += 1
                await asyncio.sleep(0.1)
                continue
            self._compare(index, answer)
            # Leaves some of the machine to what they stand beside.
            await asyncio.sleep(self.stage.options.scale(20, 100) / 1000)

    def _compare(self, index: int, answer: Answer) -> None:
        self.answered += 1
        if fingerprint(answer) != self.alone[index]:
            self.wrong += 1
            path, body = QUESTIONS[index]
            what = f"{self.after}: a bystander is answered otherwise than alone: {answer.short()}"
            self.stage.report.check(False, what, f"{self.how}   beside   {curl(path, body)}")

    async def __aexit__(self, kind: object, *_: object) -> None:
        self.stopping = True
        for task in self.tasks:
            if kind is not None:
                task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=kind is not None)
        self.stage.report.count("requests", self.answered)
        if kind is None and self.stage.server.alive():
            self.stage.report.check(self.answered > 0, f"{self.after}: no bystander was answered", self.how)
