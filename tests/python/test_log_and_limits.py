"""A server whose log nobody reads or nobody can write, and one with next to no files: both serve, and end when they are told to."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from conftest import BINARY, CHECKPOINT


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(port, stderr, limit=None):
    def limited():
        if limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    command = [BINARY, "serve", str(CHECKPOINT), "--port", str(port), "--kv-cache-memory", "16MiB"]
    process = subprocess.Popen(command, stderr=stderr, preexec_fn=limited)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return process
        except OSError:
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


def ask(port, path="/v1/completions", **body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def full_pipe():
    """The end to write of a pipe that takes no byte more, and the end that nobody reads."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    return read, write


def closed_pipe():
    read, write = os.pipe()
    os.close(read)
    return None, write


@pytest.mark.parametrize("log", [full_pipe, closed_pipe])
def test_a_log_that_takes_nothing_is_in_nobodys_way(log):
    read, write = log()
    port = free_port()
    process = start(port, write)
    for _ in range(20):
        assert '"text"' in ask(port, prompt="a", max_tokens=1)
    stream = socket.create_connection(("127.0.0.1", port))
    body = json.dumps({"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    stream.sendall(head.encode() + body)
    received = stream.recv(65536)
    process.send_signal(signal.SIGTERM)
    while data := stream.recv(65536):
        received += data
    assert b'"finish_reason":"length"' in received and b"[DONE]" in received, "it has drained"
    assert process.wait(timeout=60) == 0
    for end in (read, write):
        if end is not None:
            os.close(end)


def test_connections_leave_files_for_the_server(tmp_path):
    port = free_port()
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = start(port, stderr, limit=128)
        early = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
        time.sleep(0.3)
        # Beyond the limit they wait in the system's queue.
        others = []
        for _ in range(200):
            other = socket.socket()
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
            others.append(other)
        time.sleep(1)
        body = json.dumps({"messages": [{"role": "user", "content": "Hi " * 20}], "max_tokens": 1}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        for connection in early:
            connection.settimeout(60)
            connection.sendall(head.encode() + body)
        answers = [connection.recv(65536) for connection in early]
        assert all(re.match(rb"HTTP/1.1 200 ", answer) for answer in answers), answers
        for connection in early + others:
            connection.close()
        assert '"text"' in ask(port, prompt="a", max_tokens=1)
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert "Too many open files" not in log.read_text()


@pytest.mark.parametrize("log", ["pipe", "/dev/full"])
def test_a_server_that_fails_ends_whether_or_not_its_error_can_be_written(tmp_path, log):
    damaged = tmp_path / "damaged"
    shutil.copytree(CHECKPOINT, damaged)
    os.truncate(damaged / "model.safetensors", 10_000)
    read, stderr = full_pipe() if log == "pipe" else (None, os.open(log, os.O_WRONLY))
    command = [BINARY, "serve", str(damaged), "--port", str(free_port()), "--kv-cache-memory", "16MiB"]
    process = subprocess.Popen(command, stderr=stderr)
    try:
        assert process.wait(60) == 1
    finally:
        process.kill()
        os.close(stderr)
        if read is not None:
            os.close(read)
