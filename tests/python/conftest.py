"""The real server on a small checkpoint, once for all tests. Knows the binary, not what is asked of it."""

import pytest

from server import API_KEY, BINARY, CHECKPOINT, MODEL, ROOT, Server  # noqa: F401

MESSAGES_ALONE = "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}\n{% endfor %}"
# Short, because the model's length is.
WITH_TOOLS = "{% if tools %}<tool_call> {{ tools[0].function.name }}{% endif %}" + MESSAGES_ALONE


def run(*flags):
    server = Server("--api-key", API_KEY, *flags)
    yield server
    server.process.terminate()
    assert server.process.wait(timeout=120) == 0


def serve(*flags):
    for server in run(*flags):
        yield server.client()


@pytest.fixture(scope="session")
def server():
    yield from run()


@pytest.fixture(scope="session")
def with_tools():
    yield from serve("--chat-template", WITH_TOOLS, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def binary():
    return [str(BINARY)]


@pytest.fixture
def checkpoint():
    return str(CHECKPOINT)
