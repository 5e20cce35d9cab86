"""Runs the real server. Knows the binary, not what is asked of it."""

import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = Path(os.environ.get("VLLM_APPLE_BINARY", TARGET / "debug" / "vllm-apple"))
CHECKPOINT = ROOT / "tests/golden/models/qwen2"
API_KEY = "a-key-for-tests"
MODEL = "small"


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

    def wait_until_ready(self):
        """Until the model is loaded, for clients that do not ask a second time."""
        while self.process.poll() is None:
            try:
                return urllib.request.urlopen(f"{self.url}/health", timeout=60).close()
            except urllib.error.HTTPError as error:
                assert error.code == 503
                time.sleep(0.05)
        raise RuntimeError("the server ended:\n" + "".join(self.log))

    def client(self, api_key: str = API_KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=20, timeout=120)
