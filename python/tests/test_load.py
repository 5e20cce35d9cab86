"""The engine without vLLM: how it downloads a model, and how it is interrupted while it loads one."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from vllm import EngineArgs

from vllm_apple import _engine
from vllm_apple.engine import options

# It gives the engine's messages to vLLM's logger.
from vllm_apple.v1.worker import worker  # noqa: F401

from conftest import GOLDEN, readable

MODEL = GOLDEN / "models/qwen2"
TIMEOUT = 60

# The handler is Python's own also where the tests run in the background of a shell.
LOAD = """
import json, logging, signal, sys
from vllm_apple import _engine
signal.signal(signal.SIGINT, signal.default_int_handler)
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
_engine.log_to(logging.getLogger("engine"))
print("computes on", _engine.Engine(json.loads(sys.argv[1])).device)
"""


class Hub(BaseHTTPRequestHandler):
    """A hub of one model, whose weights stand still in the middle until `goes_on`."""

    stands_still: Event
    goes_on: Event

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/"):
            body = json.dumps({"sha": "a" * 40, "siblings": [{"rfilename": path.name} for path in MODEL.iterdir()]}).encode()
            self.send_response(200)
        else:
            whole = (MODEL / name).read_bytes()
            first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"]).groups()
            first, last = int(first), min(int(last or len(whole)), len(whole) - 1)
            body = whole[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
            self.send_header("ETag", json.dumps(name))
            self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if name == "model.safetensors" and half:
            self.stands_still.set()
            self.goes_on.wait(TIMEOUT)
        self.wfile.write(body[half:])

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    Hub.stands_still, Hub.goes_on = Event(), Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    Hub.goes_on.set()
    server.shutdown()
    server.server_close()


def load_options():
    config = EngineArgs(model=str(readable(MODEL)), dtype="float32", max_model_len=64).create_engine_config()
    return options.engine_options(config)


def download(hub, directory):
    asked = load_options() | {"model": "some/model", "download_dir": str(directory)}
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
    command = [sys.executable, "-c", LOAD, json.dumps(asked)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_download_says_how_far_it_is_and_can_be_interrupted(hub, tmp_path):
    process = download(hub, tmp_path)
    assert Hub.stands_still.wait(TIMEOUT)
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=TIMEOUT)
    assert not Hub.goes_on.is_set(), "it still stands still"
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert re.search(r"^downloading some/model: \d+% of config\.json \(1 MiB\)$", said, re.M)
    # What has arrived is kept.
    Hub.goes_on.set()
    said, error = download(hub, tmp_path).communicate(timeout=TIMEOUT)
    assert "computes on cpu" in said, error
    assert "model.safetensors" in said


def test_an_interrupt_within_a_message_is_raised_and_other_errors_are_not(monkeypatch):
    logger, asked = logging.getLogger("vllm.apple.engine"), load_options()

    def load(error):
        with monkeypatch.context() as patch:
            patch.setattr(logger, "info", lambda *_: (_ for _ in ()).throw(error))
            return _engine.Engine(asked)

    for interrupt in (KeyboardInterrupt, SystemExit):
        with pytest.raises(interrupt):
            load(interrupt())
        assert load(ValueError()).device.startswith("cpu")
