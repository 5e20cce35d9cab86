"""Starts the real server on a small checkpoint, once for all tests. Knows the binary, not what is asked of it."""

import os
import re
import subprocess
import threading
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = Path(os.environ.get("VLLM_APPLE_BINARY", TARGET / "debug" / "vllm-apple"))
CHECKPOINT = ROOT / "tests/golden/models/qwen2"
API_KEY = "a-key-for-tests"
MODEL = "small"
MESSAGES_ALONE = "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}\n{% endfor %}"
# Short, because the model's length is.
WITH_TOOLS = "{% if tools %}<tool_call> {{ tools[0].function.name }}{% endif %}" + MESSAGES_ALONE


class Server:
    """A running `vllm-apple serve`. `model` None: the bundled one, unpacked into the cache of `environment`."""

    def __init__(self, *flags: str, model: Path | None = CHECKPOINT, environment: dict[str, str] | None = None):
        served = [str(model)] if model else []
        command = [BINARY, "serve", *served, "--port", "0", "--served-model-name", MODEL, *flags]
        environment = os.environ | (environment or {})
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log = []
        self.url = self._wait_for_url()
        # The pipe must be read on, or a talkative server would stop at a full one.
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def _wait_for_url(self) -> str:
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (http://[0-9.:]+)", line):
                return found[1]
        raise RuntimeError("the server ended:\n" + "".join(self.log))

    def client(self, api_key: str = API_KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=20, timeout=120)


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
