"""Bodies that cost many times themselves. Knows sizes: of what is sent, of what comes back, and of the process."""

import asyncio
from dataclasses import dataclass

from .bystanders import Bystanders
from .client import Answer, Connection, ask, encode, request_bytes
from .report import Report, snippet
from .stage import CHAT, COMPLETIONS, Options, Stage

# Most bytes that a request may add to the process, per byte of its body, and what any request may add.
TIMES_BODY = 20
ALLOWANCE = 64 << 20

# What all requests together may add to the process, however many there are.
TOGETHER = 1 << 30

# The same for a request whose answer is large by right: log-probabilities of many tokens.
LARGE_ANSWER = 256 << 20

# Most bytes of an answer, and of a refusal.
LONGEST_ANSWER = 256 << 20
LONGEST_REFUSAL = 16384

# Most bytes that a request may write to the log.
LONGEST_LOG = 16384


@dataclass
class Row:
    """A body as a Python expression."""

    name: str
    path: str
    body: str
    # What must not happen: an answer. None where both are right.
    refused: bool | None = None
    # A word that the refusal must hold.
    names: str = ""
    # Much comes back by right.
    large: bool = False


LOGPROBS = '"temperature": 0, "ignore_eos": True'

ROWS = [
    # Few bytes that many requests hold.
    Row("a long stop times prompts", COMPLETIONS, '{"prompt": ["a"] * 10_000, "stop": "x" * 1_000_000}', True),
    Row("a long stop times n", COMPLETIONS, '{"prompt": "a", "n": 128, "max_tokens": 1, "stop": "x" * 8_000_000}'),
    Row("many stops", COMPLETIONS, '{"prompt": "a", "n": 128, "max_tokens": 1, "stop": ["x"] * 1_000_000}'),
    Row("many prompts", COMPLETIONS, '{"prompt": ["a"] * 3_000_000, "max_tokens": 1}', True, "prompt"),
    Row("many prompts of tokens", COMPLETIONS, '{"prompt": [[1]] * 3_000_000, "max_tokens": 1}', True, "prompt"),
    Row("empty prompts", COMPLETIONS, '{"prompt": [[]] * 4_000_000, "max_tokens": 1}', True),
    Row("a prompt of tokens without end", COMPLETIONS, '{"prompt": [1] * 5_000_000, "n": 128, "max_tokens": 1}', True),
    Row("stop tokens times n", COMPLETIONS,
        '{"prompt": "a", "n": 128, "max_tokens": 1, "stop_token_ids": [1] * 5_000_000}'),
    Row("stop tokens times prompts", COMPLETIONS,
        '{"prompt": ["a"] * 1000, "max_tokens": 1, "stop_token_ids": [1] * 1_000_000}'),
    Row("a bias written many ways", COMPLETIONS,
        '{"prompt": "a", "n": 128, "max_tokens": 1, "logit_bias": {f"{i:030}": 1 for i in range(4000)} '
        '| {"0" * k + "7": 1 for k in range(1, 4000)}}'),
    Row("chat stops times n", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "n": 128, "max_tokens": 1, "stop": ["x" * 1000] * 10_000}'),
    # What comes back for every token.
    Row("a long request_id in a stream", COMPLETIONS,
        '{"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True, "request_id": "x" * 1_000_000}'),
    Row("a long request_id times n", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "n": 128, "max_tokens": 20, "ignore_eos": True, '
        '"stream": True, "request_id": "\\n\\0" * 100_000}'),
    Row("a long model name", COMPLETIONS, '{"model": "\\0" * 2_500_000, "prompt": "a"}', True, "model"),
    Row("a long value of the wrong type", COMPLETIONS, '{"prompt": "a", "n": "x" * 15_000_000}', True, "`n`"),
    Row("a long unknown field", COMPLETIONS, '{"prompt": "a", "max_tokens": 1, "x" * 15_000_000: 1}'),
    Row("a long bias key", COMPLETIONS, '{"prompt": "a", "logit_bias": {"x" * 15_000_000: 1}}', True, "logit_bias"),
    Row("a long part type", CHAT,
        '{"messages": [{"role": "user", "content": [{"type": "\\1" * 2_500_000}]}]}', True, "type"),
    # Log-probabilities: few bytes in, many out.
    Row("prompt_logprobs times n", COMPLETIONS,
        f'{{"prompt": list(range(1000)), "n": 16, "max_tokens": 1, "prompt_logprobs": 20, {LOGPROBS}}}', large=True),
    Row("prompt_logprobs of a long prompt times n", COMPLETIONS,
        '{"prompt": [i % 4000 for i in range(4000)], "n": 128, "max_tokens": 1, "prompt_logprobs": 0}', large=True),
    Row("prompt_logprobs times prompts", COMPLETIONS,
        f'{{"prompt": [list(range(1000))] * 16, "max_tokens": 1, "prompt_logprobs": 20, {LOGPROBS}}}', large=True),
    Row("logprobs times n", COMPLETIONS, f'{{"prompt": "a", "n": 32, "max_tokens": 500, "logprobs": 20, {LOGPROBS}}}', large=True),
    Row("echo with logprobs times n", COMPLETIONS,
        f'{{"prompt": list(range(1000)), "n": 16, "max_tokens": 1, "echo": True, "logprobs": 20, {LOGPROBS}}}', large=True),
    Row("chat logprobs times n", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "n": 32, "max_tokens": 500, "logprobs": True, '
        f'"top_logprobs": 20, {LOGPROBS}}}', large=True),
    # The bundled model's <|im_end|>, which does not show.
    Row("logprobs of tokens without text", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 4000, "logit_bias": {4095: 100}, "logprobs": True, '
        f'"top_logprobs": 20, "stream": True, {LOGPROBS}}}', large=True),
    Row("token ids times n", COMPLETIONS,
        '{"prompt": list(range(4000)), "n": 64, "max_tokens": 1, "return_token_ids": True, "echo": True}'),
    # Text.
    Row("one letter", COMPLETIONS, '{"prompt": "a" * 15_000_000, "max_tokens": 1}', True),
    Row("spaces", COMPLETIONS, '{"prompt": " " * 1_200_000, "max_tokens": 1}', True),
    Row("many spaces", "/tokenize", '{"prompt": " " * 15_000_000}'),
    Row("many messages", CHAT, '{"messages": [{"role": "user", "content": "Hi"}] * 300_000, "max_tokens": 1}', True),
    Row("empty messages", CHAT, '{"messages": [{"role": ""}] * 1_000_000, "max_tokens": 1}', True),
    Row("many parts", CHAT,
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 400_000}], "max_tokens": 1}'),
    Row("many empty parts", CHAT, '{"messages": [{"role": "user", "content": [""] * 3_500_000}], "max_tokens": 1}'),
    Row("many tools", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"name": ""}}] * 400_000, "max_tokens": 1}'),
    Row("many template variables", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"v": [0] * 5_000_000}, "max_tokens": 1}'),
    Row("a choice of tools of many values", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "tool_choice": [[0]] * 2_500_000}', True, "tool_choice"),
    Row("parts with many values", CHAT,
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": [[0]] * 2_500_000}]}], "max_tokens": 1}'),
    Row("a tool with many values", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"name": "a"}, "x": [[0]] * 2_500_000}], "max_tokens": 1}'),
    Row("many documents", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "documents": [0] * 5_000_000, "max_tokens": 1}'),
    Row("many variables of a template", CHAT,
        '{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {f"{i}": 0 for i in range(1_000_000)}}', True),
    Row("many fields", COMPLETIONS, '{"prompt": "a", "max_tokens": 1} | {str(i): 0 for i in range(1_000_000)}'),
    Row("an unsupported field of many values", COMPLETIONS,
        '{"prompt": "a", "max_tokens": 1, "bad_words": [[]] * 4_000_000}', True),
    Row("a field without effect", COMPLETIONS, '{"prompt": "a", "max_tokens": 1, "metadata": [[]] * 4_000_000}'),
    Row("detokenize", "/detokenize", '{"tokens": [5] * 5_000_000}'),
    Row("detokenize the longest token", "/detokenize", '{"tokens": [4000] * 2_500_000}'),
    Row("tokenize with strings", "/tokenize", '{"prompt": "ab " * 2_000_000, "return_token_strs": True}'),
]  # fmt: skip


CORE = ["a long stop times prompts", "stop tokens times n", "a long request_id in a stream", "prompt_logprobs times n"]
CORE += ["many prompts", "one letter", "spaces", "many messages"]


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        for row in ROWS:
            if row.name in CORE or not options.core:
                await _row(stage, row)
        await _three_at_once(stage)
        await _together(stage, options.scale(24, 10))
        await _unfinished_bodies(stage, options.scale(32, 16))


async def _row(stage: Stage, row: Row) -> None:
    how = snippet(row.path, row.body)
    body = encode(eval(row.body))  # Written above, so that what is shown is what is sent.
    before = stage.server.rss()
    logged = stage.server.log_path.stat().st_size
    stage.server.reset_peak()
    stage.report.count("requests")
    answer = await _drain(stage.port, row.path, body, seconds=90)
    peak = stage.server.peak() - before
    check = stage.report.check
    if answer.status <= 0:
        await asyncio.sleep(0.5)
        if not await stage.revive(row.name, how):
            return
        check(False, f"{row.name}: {answer.short()}", how)
    if row.refused:
        check(400 <= answer.status < 500, f"{row.name}: expected a refusal, got {answer.short()[:120]}", how)
        check(row.names in (answer.error or ""), f"{row.name}: the refusal does not name {row.names}", how)
    else:
        check(answer.status in (-1, 0, 200, 400, 413, 422), f"{row.name}: {answer.short()[:200]}", how)
    most = LARGE_ANSWER if row.large else TIMES_BODY * len(body) + ALLOWANCE
    sizes = f"{len(body) / 2**20:.2f} MiB sent, {answer.size / 2**20:.2f} MiB received"
    check(peak <= most, f"{row.name}: {peak / 2**20:.0f} MiB more at the peak ({sizes})", how)
    longest = LONGEST_REFUSAL if answer.status >= 400 else LONGEST_ANSWER
    check(answer.size <= longest, f"{row.name}: the answer is too long: {sizes}", how)
    logged = stage.server.log_path.stat().st_size - logged
    check(logged <= LONGEST_LOG, f"{row.name}: {logged / 2**20:.2f} MiB written to the log", how)
    await stage.well(row.name, how)


async def _drain(port: int, path: str, body: bytes, seconds: float) -> Answer:
    """The answer, of whose body the size counts and the beginning is kept."""
    connection = None
    answer = Answer(-1)
    try:
        async with asyncio.timeout(seconds):
            connection = await Connection.open(port)
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.send(request_bytes("POST", path, body, headers))
            status, headers = await connection.head()
            answer = Answer(status, headers)
            async for piece in connection.pieces(headers):
                answer.size += len(piece)
                if len(answer.body) < 1 << 16:
                    answer.body += piece
    except TimeoutError:
        answer.status = -1
    except (OSError, EOFError):
        answer.status = 0
    if connection:
        connection.close()
    return answer


BIG = {
    "a prompt of one letter": (COMPLETIONS, '{"prompt": "a" * 15_000_000, "max_tokens": 1}'),
    "300,000 messages": (CHAT, '{"messages": [{"role": "user", "content": "Hi"}] * 300_000, "max_tokens": 1}'),
    "1.2 million spaces": (COMPLETIONS, '{"prompt": " " * 1_200_000, "max_tokens": 1}'),
}


async def _three_at_once(stage: Stage) -> None:
    """Three large bodies at once, beside clients that want answers soon."""
    before = stage.server.rss()
    stage.server.reset_peak()
    bodies = [(path, encode(eval(expression))) for path, expression in BIG.values()]
    how = "; ".join(snippet(path, expression) for path, expression in BIG.values())
    async with Bystanders(stage, "beside three large bodies", how):
        answers = await asyncio.gather(*(_drain(stage.port, path, body, 120) for path, body in bodies))
    stage.report.count("requests", 3)
    for answer, name in zip(answers, BIG, strict=True):
        stage.report.check(400 <= answer.status < 500, f"three at once: {name}: {answer.short()[:120]}", how)
    peak = stage.server.peak() - before
    sent = sum(len(body) for _, body in bodies)
    most = TIMES_BODY * sent
    stage.report.check(peak <= most, f"three large bodies: {peak >> 20} MiB for {sent >> 20} MiB at the peak", how)
    await stage.well("three large bodies", how)


async def _together(stage: Stage, count: int) -> None:
    """Many large bodies at once: all together stay below a bound; what is beyond it is refused or waits."""
    rows = [
        (COMPLETIONS, '{"prompt": "a b " * 3_500_000, "max_tokens": 1}'),
        (CHAT, '{"messages": [{"role": "user", "content": "Hi"}] * 300_000, "max_tokens": 1}'),
        ("/detokenize", '{"tokens": [5] * 5_000_000}'),
    ]
    for path, expression in rows[: stage.options.scale(3, 1)]:
        how = f"{count} times at once: {snippet(path, expression)}"
        body = encode(eval(expression))
        before = stage.server.rss()
        stage.server.reset_peak()
        answers = await asyncio.gather(*(_drain(stage.port, path, body, 120) for _ in range(count)))
        stage.report.count("requests", count)
        await asyncio.sleep(0.3)
        if not await stage.revive(f"{count} large bodies at once", how):
            continue
        wrong = [answer for answer in answers if answer.status not in (200, 400, 413, 429, 503)]
        shown = wrong[0].short()[:120] if wrong else ""
        stage.report.check(not wrong, f"{count} large bodies at once: {len(wrong)} get {shown}", how)
        peak = stage.server.peak() - before
        stage.report.check(peak <= TOGETHER, f"{count} large bodies to {path}: {peak >> 20} MiB more at the peak", how)
        await stage.well(f"{count} large bodies to {path}", how)


async def _unfinished_bodies(stage: Stage, count: int) -> None:
    """Bodies of which the last byte never comes: what is held for them is bounded."""
    how = f"{count} connections that each announce 16,000,000 bytes, send all but one and wait"
    body = b'{"prompt": "' + b"a" * 15_999_987
    data = request_bytes("POST", COMPLETIONS, body, {"Content-Type": "application/json", "Content-Length": "16000000"})
    before = stage.server.rss()
    stage.server.reset_peak()
    connections = [await Connection.open(stage.port) for _ in range(count)]
    stage.report.count("clients", count)
    async with Bystanders(stage, "beside unfinished bodies", how, may_refuse=True):
        for connection in connections:
            connection.send(data)
        await asyncio.sleep(3)
    answer = await ask(stage.port, "/health", timeout=20)
    stage.report.check(answer.status == 200, f"beside unfinished bodies /health gets {answer.short()}", how)
    peak = stage.server.peak() - before
    stage.report.check(peak <= TOGETHER, f"{count} unfinished bodies hold {peak >> 20} MiB", how)
    for connection in connections:
        connection.close(reset=True)
    await stage.well("unfinished bodies", how)
