"""Requests whose numbers leave no token to pick, beside clients that must not notice.

Knows the samplers' parameters.
"""

import asyncio

from .bystanders import Bystanders
from .client import Answer
from .report import Report
from .stage import COMPLETIONS, Options, Stage

# The demo model's vocabulary, and one token less: its context must have room for the answer.
VOCABULARY = 4096

WHOLE = f"list(range({VOCABULARY - 1}))"
HALF = f"list(range({VOCABULARY // 2}))"
BIAS = f"{{str(i): 100 for i in range({VOCABULARY})}}"
BAN = f"{{str(i): -100 for i in range({VOCABULARY})}}"
STOPS = f"list(range({VOCABULARY}))"

# Fields of a completion, and what a refusal must name. A poison may also be answered, where infinities are clamped.
POISONS: list[tuple[str, tuple[str, ...]]] = [
    *((f'"prompt": {WHOLE}, "max_tokens": 1, "temperature": 0, "repetition_penalty": {r}', ("repetition_penalty",))
      for r in ("1e-40", "1e-38", "1e-36", "1e-30", "1e-45", "3e38")),
    *((f'"prompt": {HALF}, "max_tokens": 8, "temperature": {t}, "seed": 1, "repetition_penalty": 1e-40',
       ("repetition_penalty",)) for t in ("0", "1", "1.1e-5", "100")),
    *((f'"prompt": {HALF}, "max_tokens": 8, "temperature": {t}, "seed": 1, "repetition_penalty": {r}, '
       f'"logit_bias": {b}', ("repetition_penalty", "logit_bias"))
      for t, r, b in (("0", "1e-30", BIAS), ("1", "1e-30", BIAS), ("1", "1e-37", BIAS), ("1.1e-5", "1e-34", BIAS),
                      ("0", "3e38", BAN), ("1", "3e37", BAN), ("1.1e-5", "1e33", BAN))),
    *((f'"prompt": "a b c", "max_tokens": 4, "min_tokens": {m}, "temperature": {t}, "seed": 1, '
       f'"stop_token_ids": {STOPS}', ("min_tokens", "stop_token_ids"))
      for m, t in (("1", "0"), ("1", "1"), ("4", "0"), ("4", "0.5"))),
    (f'"prompt": "a b c", "max_tokens": 4, "min_tokens": 2, "ignore_eos": True, "stop_token_ids": {STOPS}',
     ("min_tokens", "stop_token_ids")),
    (f'"prompt": "a b c", "n": 32, "max_tokens": 4, "min_tokens": 2, "stop_token_ids": {STOPS}',
     ("min_tokens", "stop_token_ids")),
    (f'"prompt": {HALF}, "max_tokens": 64, "ignore_eos": True, "temperature": 0, "frequency_penalty": -2, '
     f'"presence_penalty": -2, "repetition_penalty": 1e-30', ("repetition_penalty",)),
    (f'"prompt": {HALF}, "n": 16, "max_tokens": 16, "temperature": 2, "repetition_penalty": 1e-38, "stream": True',
     ("repetition_penalty",)),
    (f'"prompt": {WHOLE}, "max_tokens": 1, "temperature": 0, "repetition_penalty": 1e-40, "logprobs": 20, '
     f'"prompt_logprobs": 20, "echo": True', ("repetition_penalty",)),
    ('"prompt": "a b c", "max_tokens": 4, "temperature": 1, "top_p": 1e-45', ("top_p",)),
    ('"prompt": "a b c", "max_tokens": 4, "temperature": 1.1e-5, "top_p": 1e-38, "min_p": 1, "top_k": 1', ("top_p",)),
    ('"prompt": "a b c", "max_tokens": 4, "temperature": 100, "min_p": 1e-45, "top_k": 4294967296', ("min_p",)),
    (f'"prompt": "a b c", "max_tokens": 4, "temperature": 0, "logit_bias": {BAN}', ("logit_bias",)),
    (f'"prompt": "a b c", "max_tokens": 4, "temperature": 1, "logit_bias": {BIAS}', ("logit_bias",)),
]  # fmt: skip

# Tokens that must be picked when all others are banned.
ONLY = [0, 77, 300, 4092]


def is_legal(answer: Answer, names: tuple[str, ...]) -> bool:
    """A whole answer, or a refusal that names a parameter at fault."""
    if answer.status == 200:
        # The word alone is a token of the bundled model, which stands in answers as such.
        return b'"error":{' not in answer.body
    return 400 <= answer.status < 500 and any(name in (answer.error or "") for name in names)


# Poisons that share one crowd of bystanders.
GROUP = 6


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        chosen = POISONS[:: options.scale(1, 3)]
        for start in range(0, len(chosen), GROUP):
            await _group(stage, chosen[start : start + GROUP])
        for token in ONLY:
            await _only(stage, token)
        await _crowd(stage)


async def _group(stage: Stage, poisons: list[tuple[str, tuple[str, ...]]]) -> None:
    """One after the other, beside the same bystanders: the last one sent is named if one of these notices."""
    async with Bystanders(stage, "") as bystanders:
        for fields, names in poisons:
            expression = f"{{{fields}}}"
            what = fields if len(fields) < 200 else f"{fields[:200]}…"
            bystanders.after = f"beside {what}"
            for _ in range(stage.options.scale(2, 1)):
                answer, how = await stage.attack(what, COMPLETIONS, expression)
                bystanders.how = how
                stage.report.count("poisons")
                wrong = f"{what}: expected an answer or a refusal naming {names}, got {answer.short()}"
                stage.report.check(is_legal(answer, names), wrong, how)
    await stage.well("poisons", how)


async def _only(stage: Stage, token: int) -> None:
    """A bias that bans all tokens but one picks that one."""
    bias = f"{{str(i): 100 if i == {token} else -100 for i in range({VOCABULARY})}}"
    for temperature in ("0", "1"):
        fields = f'"prompt": "a b c", "max_tokens": 1, "temperature": {temperature}, "logit_bias": {bias}'
        expression = f'{{{fields}, "ignore_eos": True, "return_token_ids": True}}'
        answer, how = await stage.attack("a ban of all but one", COMPLETIONS, expression)
        body = answer.json()
        picked = body["choices"][0]["token_ids"] if answer.status == 200 else answer.short()
        stage.report.check(picked == [token], f"only token {token} is not banned, picked was {picked}", how)
    stage.report.count("poisons")


async def _crowd(stage: Stage) -> None:
    """All poisons at once, among them many that are legal."""
    chosen = stage.random.choices(POISONS, k=stage.options.scale(30, 10))
    async with Bystanders(stage, "beside all poisons at once") as bystanders:
        expressions = [f"{{{fields}}}" for fields, _ in chosen]
        attacks = [stage.attack("all poisons at once", COMPLETIONS, expression) for expression in expressions]
        answers = await asyncio.gather(*attacks)
        bystanders.how = answers[0][1]
        for (answer, how), (_, names) in zip(answers, chosen, strict=True):
            legal = is_legal(answer, names)
            stage.report.check(legal, f"among many: expected an answer or a refusal, got {answer.short()}", how)
            stage.report.count("poisons")
    await stage.well("all poisons at once")
