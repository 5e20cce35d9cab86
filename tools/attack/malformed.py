"""Requests that are wrong in every way a client can get them wrong.

Knows the fields of the API and that none may cause a 5xx.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

from .bystanders import Bystanders
from .client import CLOSED, Answer, Connection, encode, request_bytes, texts_within_texts
from .report import Report, raw
from .stage import CHAT, COMPLETIONS, Options, Stage

BASES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a b c", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/tokenize": {"prompt": "a b c"},
    "/detokenize": {"tokens": [5, 6, 7]},
}

SAMPLING = (
    "model temperature top_k top_p min_p repetition_penalty frequency_penalty presence_penalty logit_bias seed stop "
    "stop_token_ids include_stop_str_in_output ignore_eos min_tokens max_tokens n stream stream_options logprobs "
    "prompt_logprobs skip_special_tokens spaces_between_special_tokens request_id return_token_ids "
    "return_tokens_as_token_ids echo add_special_tokens allowed_token_ids bad_words cache_salt chat_template priority "
    "response_format truncate_prompt_tokens use_beam_search structured_outputs user metadata unheard_of"
).split()

FIELDS: dict[str, list[str]] = {
    COMPLETIONS: ["prompt", "best_of", "suffix", "prompt_embeds", *SAMPLING],
    CHAT: [
        *("messages", "tools", "tool_choice", "documents", "chat_template_kwargs", "reasoning_effort"),
        *("max_completion_tokens", "top_logprobs", "add_generation_prompt", "continue_final_message", "functions"),
        *SAMPLING,
    ],
    "/v1/responses": [
        *("input", "instructions", "previous_response_id", "text", "reasoning", "include", "metadata", "tools"),
        *("tool_choice", "max_output_tokens", "parallel_tool_calls", "store", "stream_options"),
    ],
    "/tokenize": ["prompt", "messages", "model", "add_special_tokens", "return_token_strs", "tools", "chat_template"],
    "/detokenize": ["tokens", "model", "unheard_of"],
}

# JSON texts, not values: some say what Python's json would not write.
VALUES = [
    *("null", "true", "false", "0", "-0", "-0.0", "-1", "1", "1.5", "2147483648", "4294967295", "4294967296"),
    *("-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616"),
    *("1e308", "-1e308", "1e309", "1e400", "1e-400", "1e-45", "5e-324", "NaN", "Infinity", "-Infinity", "0x10"),
    *('""', '" "', '"a"', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\uffff"', '"1"', '"nan"', '"-1"'),
    *("[]", "[[]]", "[null]", '[""]', '["a", 1]', "[1, -1]", "[1.5]", "[4294967296]", "[[1], [null]]", "[{}]"),
    *("{}", '{"a": 1}', '{"": null}', '{"1": 1e39}', '{"-1": 1}', '{"99999999999": 1}', '{"type": "json_object"}'),
    *('{"type": []}', '[{"role": 1}]', '[{"role": "user", "content": 1}]', '[{"role": "user", "content": [{}]}]'),
    *('[{"role": "user", "content": [{"type": "text"}]}]', '[{"role": "", "content": ""}]', '[{"content": "x"}]'),
    *('[{"role": "user", "content": "x", "tool_calls": 1}]', '[{"type": "function"}]', '[{"function": {"name": 1}}]'),
    '[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]',
    '"' + "x" * 5000 + '"',
    "9" * 5000,
    "1" + "0" * 400 + ".0",
    "[" * 200 + "]" * 200,
    "[" * 100_000,
    '{"a":' * 5000,
    '[{"role": "user", "content": ' + '[{"type": "text", "text": "x"},' * 150,
]

CONTENT_TYPES = [
    *("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx"),
    *("application/json; charset=utf-16", "application/json, text/plain", "json", "*/*", "application/json\x80", ";"),
]

PATHS = [
    *("/", "//", "/v1", "/v1/", "/v1/completions/", "/V1/completions", "/v1//completions", "/v1/completions?x=1#y"),
    *("/v1/../v1/completions", "/%2e%2e/etc/passwd", "/v1/%63ompletions", "/v1/completions%00", "/v1/models/%ff%fe"),
    *("/v1/models/a/b/c", "/v1/models/%0d%0aX-Injected:%201", "/v1/models/" + "x" * 8000, "/" + "a/" * 4000, "/é", "*"),
    *(
        "/metrics/",
        "/metrics?" + "a" * 8000,
        "http://elsewhere/v1/models",
        "/v1/models/%",
        "/v1/models/\x7f",
        "/health/",
    ),
]

METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "FOO", "get", "P\x01ST"]

# An error that echoes what was sent must cut it.
LONGEST_ERROR = 4096

MOST_AT_ONCE = 16


def field_mutations() -> Iterator[tuple[str, bytes]]:
    """Every field of every endpoint with every wrong value."""
    for path, fields in FIELDS.items():
        for name in fields:
            for value in VALUES:
                base = {key: value for key, value in BASES[path].items() if key != name}
                text = json.dumps(base)[:-1] + (", " if base else "") + f'"{name}": {value}}}'
                yield path, text.encode()


def body_mutations(rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Bodies with some bytes changed, lost, doubled or cut off."""
    rich = {"temperature": 0.5, "stop": ["é", "\n"], "logit_bias": {"5": 1.5}, "n": 2, "seed": 3, "stream": False}
    for _ in range(count):
        path = rng.choice(list(BASES))
        fields = BASES[path] | (rich if path in (COMPLETIONS, CHAT) else {})
        body = bytearray(json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode())
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            _mutate(rng, body)
        yield path, bytes(body)


def _mutate(rng: random.Random, body: bytearray) -> None:
    at = rng.randrange(len(body) + 1)
    match rng.randrange(7):
        case 0 if at < len(body):
            body[at] ^= 1 << rng.randrange(8)
        case 1:
            body[at:at] = rng.choice(
                (b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"{", b"[", b'"', b"\\u", b"-", b"e9")
            )
        case 2:
            del body[at : at + rng.randrange(1, 9)]
        case 3:
            del body[at:]
        case 4:
            body[at:at] = body[at : at + rng.randrange(1, 40)]
        case 5:
            body[at:at] = rng.choice((b"1e999", b"null", b"[[[[", b"{}", b'"a":', b"\xf0\x9f\x98\x80", b"\xef\xbb\xbf"))
        case _:
            body[at:at] = body[:]


def whole_bodies() -> Iterator[tuple[str, bytes]]:
    """Bodies that are no object of fields."""
    texts: list[Any] = [
        "",
        " ",
        "null",
        "[]",
        "0",
        '"x"',
        "{",
        "}",
        '{"a"}',
        "{]",
        "\ufeff{}",
        "{}{}",
        "{} x",
        "[" * 1_000_000,
    ]
    texts += [
        '{"prompt": "a", "prompt": "b"}',
        '{"prompt": ' * 1000,
        "\x00" * 1000,
        b"\xff\xfe{\x00}\x00",
        b"\x1f\x8b\x08\x00",
    ]
    texts += ['{"' + "x" * 1_000_000 + '": 1}', "{" + ",".join(f'"f{i}": {i}' for i in range(50_000)) + "}"]
    texts += ['{"prompt": "a", "max_tokens": 1, "max_tokens": 4}', b'{"prompt": "\xed\xa0\x80", "max_tokens": 1}']
    for path in BASES:
        for text in texts:
            yield path, encode(text)


def texts_in_fields() -> Iterator[tuple[str, bytes]]:
    """Texts within texts wherever a request may hold any value."""
    bomb = texts_within_texts()
    user = '"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1'
    for path in (CHAT, "/tokenize"):
        yield path, encode('{"messages": [{"role": "user", "content": [%s]}]}' % bomb)
        yield path, encode('{"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": %s}]}], "max_tokens": 1}' % bomb)
        yield path, encode('{"messages": [{"role": "user", "content": "Hi", "tool_calls": %s}]}' % bomb)
        for field in ("tools", "documents", "tool_choice", "response_format", "chat_template_kwargs", "stream_options", "metadata", "x"):
            yield path, encode('{%s, "%s": %s}' % (user, field, bomb))
            yield path, encode('{%s, "%s": [%s]}' % (user, field, bomb))
            yield path, encode('{%s, "%s": {"a": %s}}' % (user, field, bomb))


def requests(rng: random.Random, stage: Stage) -> Iterator[bytes]:
    """Everything, as bytes for a kept connection."""
    headers = {"Content-Type": "application/json"}
    step = stage.options.scale(1, 6)
    fields = list(field_mutations())
    rng.shuffle(fields)
    bodies = [*fields[::step], *body_mutations(rng, stage.options.scale(3000, 500)), *whole_bodies(), *texts_in_fields()]
    for path, body in bodies:
        yield request_bytes("POST", path, body, headers)
    for path, fields in BASES.items():
        for kind in CONTENT_TYPES:
            yield request_bytes("POST", path, encode(fields), {"Content-Type": kind})
        yield request_bytes("POST", path, encode(fields))
        for encoding in ("gzip", "br", "x", "identity"):
            yield request_bytes("POST", path, encode(fields), {**headers, "Content-Encoding": encoding})
    for path in [*PATHS, *BASES, "/v1/models", "/health", "/metrics", "/version"]:
        for method in METHODS:
            yield request_bytes(method, path, b"{}" if method in ("PUT", "PATCH") else b"", headers)
    for name in ("Authorization", "X-Request-Id", "Accept", "Accept-Encoding", "Expect", "Upgrade", "Range", "Cookie"):
        for value in ("", "x" * 8000, "\xff\xfe", "Bearer ", "Bearer " + "é" * 100, "100-continue", "h2c", "bytes=0-1"):
            yield request_bytes("POST", "/tokenize", encode(BASES["/tokenize"]), {**headers, name: value})


def judge(answer: Answer, is_head: bool = False) -> str:
    """What is wrong with the answer; empty if nothing is.

    Right is a refusal, a success where the mutation was none, and a closed connection where it was no HTTP any more.
    """
    if answer.status == CLOSED or 200 <= answer.status < 300:
        return ""
    if not 400 <= answer.status < 500:
        return f"expected a refusal, got {answer.short()}"
    # An empty body is the HTTP library's own refusal of what it cannot read.
    if answer.body and not is_head and answer.error is None:
        return f"the refusal is no error object: {answer.short()}"
    if answer.size > LONGEST_ERROR:
        return f"a refusal has more than {LONGEST_ERROR} bytes"
    return ""


async def run(options: Options, report: Report) -> None:
    async with Stage(options, report) as stage:
        work = iter(requests(stage.random, stage))
        # The bystanders wait for steps; what is refused never reaches one.
        async with Bystanders(stage, "beside malformed requests"):
            await asyncio.gather(*(_worker(stage, work) for _ in range(MOST_AT_ONCE)))
        await stage.well("malformed requests")


async def _worker(stage: Stage, work: Iterator[bytes]) -> None:
    """Sends what is left of `work` on a kept connection, and on a new one where the server closed it."""
    connection = None
    for data in work:
        stage.report.count("requests")
        fresh = connection is None
        answer = await _one(stage, connection, data)
        if answer[0].status == CLOSED and not fresh:
            # The request before may have closed it: only a fresh connection says whose fault it is.
            answer = await _one(stage, None, data)
        answer, connection = answer
        wrong = judge(answer, data.startswith(b"HEAD "))
        stage.report.check(not wrong, wrong, raw(data))
        if answer.status <= 0 and not await stage.revive("a malformed request", raw(data)):
            connection = None
    if connection:
        connection.close()


async def _one(stage: Stage, connection: Connection | None, data: bytes) -> tuple[Answer, Connection | None]:
    """The answer, and the connection if it can be used again."""
    try:
        async with asyncio.timeout(30):
            connection = connection or await Connection.open(stage.port)
            connection.send(data)
            answer = await connection.answer(has_body=not data.startswith(b"HEAD "))
    except TimeoutError:
        answer = Answer(-1)
    except OSError:
        answer = Answer(CLOSED)
    if answer.status > 0 and answer.headers.get("connection") != "close" and connection:
        return answer, connection
    if connection:
        connection.close()
    return answer, None
