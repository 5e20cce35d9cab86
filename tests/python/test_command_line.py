"""The binary on a real checkpoint: generate, chat, exit codes, and a server that is told to stop."""

import json
import math
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Server


def run(binary, *args, stdin=None):
    return subprocess.run([*binary, *args], input=stdin, capture_output=True, text=True, timeout=300)


def test_generate_prints_one_result_per_line_in_order(binary, checkpoint, tmp_path):
    lines = [{"prompt": "One"}, {"prompt_token_ids": [5, 6]}, {"prompt": "Three"}]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    flags = ["--json", "--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--logprobs", "2"]
    batch = run(binary, "generate", checkpoint, "--input", path, *flags)
    assert batch.returncode == 0, batch.stderr
    results = [json.loads(line) for line in batch.stdout.splitlines()]
    assert len(results) == 3
    for result in results:
        assert list(result) == ["token_ids", "text", "finish_reason", "logprobs"]
        assert len(result["token_ids"]) == len(result["logprobs"]) == 4
        assert result["finish_reason"] == "length"
        first = result["logprobs"][0]
        assert first["token_id"] == result["token_ids"][0] == first["top"][0][0]
        assert len(first["top"]) == 2
    alone = run(binary, "generate", checkpoint, "--prompt-token-ids", "5,6", *flags)
    assert json.loads(alone.stdout) == results[1]
    text = run(binary, "generate", checkpoint, "--prompt", "One", *flags[1:-2])
    assert text.stdout == results[0]["text"] + "\n"


def test_a_text_is_tokenized_without_weights(binary, checkpoint, tmp_path):
    for path in ["config.json", "tokenizer.json", "tokenizer_config.json"]:
        if (Path(checkpoint) / path).exists():
            shutil.copy(Path(checkpoint) / path, tmp_path)
    result = run(binary, "tokenize", tmp_path, "--json", stdin="One\nTwo")
    assert result.returncode == 0, result.stderr
    tokens = json.loads(result.stdout)
    assert "".join(tokens["pieces"]) == "One\nTwo"
    lines = run(binary, "tokenize", tmp_path, "--prompt", "One\nTwo").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == tokens["ids"]
    file = run(binary, "tokenize", "--tokenizer", tmp_path / "tokenizer.json", "--prompt", "One")
    assert file.stderr.endswith("there; it is a file: give its directory\n"), file.stderr


def test_a_checkpoint_is_quantised_and_runs(binary, checkpoint, tmp_path):
    to = tmp_path / "new"
    result = run(binary, "quantize", checkpoint, to, "-q", "int4")
    assert result.returncode == 0, result.stderr
    assert "quantised to int4" in result.stdout
    flags = ["--prompt", "One", "--json", "--max-tokens", "4", "--temperature", "0", "--ignore-eos"]
    assert len(json.loads(run(binary, "generate", to, *flags).stdout)["token_ids"]) == 4
    again = run(binary, "quantize", checkpoint, to, "-q", "int4")
    assert again.returncode == 1
    # Any of them is named.
    errors = [
        f"error: {to}: is not empty, as it has {path.name}; name a directory that is not there yet\n" for path in to.iterdir()
    ]
    assert again.stderr in errors


def large(checkpoint, to):
    """A checkpoint of zeros that takes long to be quantised, and no room on a disk."""
    to.mkdir()
    shutil.copy(checkpoint / "tokenizer.json", to)
    config = json.loads((checkpoint / "config.json").read_text())
    hidden, intermediate, layers = 1024, 4096, 6
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}
    (to / "config.json").write_text(json.dumps(config | sizes | heads | {"torch_dtype": "bfloat16"}))
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = [config["vocab_size"], hidden]
    of_a_layer = {f"{name}_layernorm.weight": [hidden] for name in ("input", "post_attention")}
    of_a_layer |= {f"self_attn.{name}_proj.weight": [hidden, hidden] for name in "qkvo"}
    of_a_layer |= {f"self_attn.{name}_proj.bias": [hidden] for name in "qkv"}
    of_a_layer |= {f"mlp.{name}_proj.weight": [intermediate, hidden] for name in ("gate", "up")}
    of_a_layer |= {"mlp.down_proj.weight": [hidden, intermediate]}
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in of_a_layer.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (to / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_weights_are_quantised_leaves_nothing(binary, checkpoint, tmp_path, number, is_there):
    large(Path(checkpoint), tmp_path / "from")
    to = tmp_path / "new"
    if is_there:
        to.mkdir()
    process = subprocess.Popen([*binary, "quantize", tmp_path / "from", to, "-q", "int4"], stderr=subprocess.PIPE, text=True)
    while not (to.exists() and list(to.iterdir())):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number, process.stderr.read()
    assert to.exists() == is_there and (not is_there or not list(to.iterdir()))


def test_a_bad_line_fails_alone(binary, checkpoint):
    lines = '{"prompt": "a"}\n\n{"prompt": 3}\n{"prompt_token_ids": [999999]}\n{"prompt": "b"}\n'
    batch = run(binary, "generate", checkpoint, "--input", "-", "--json", "--max-tokens", "1", stdin=lines)
    results = [json.loads(line) for line in batch.stdout.splitlines()]
    assert [("error" in result) for result in results] == [False, True, True, False]
    assert "line 3" in results[1]["error"] and "line 4" in results[2]["error"]
    assert batch.returncode == 1 and "2 of 4 lines failed" in batch.stderr


def test_chat_over_a_pipe(binary, checkpoint):
    chat = run(binary, "chat", checkpoint, "--max-tokens", "4", "--temperature", "0", stdin="Hello\nMore\n")
    assert chat.returncode == 0, chat.stderr


def test_faults_are_one_line_and_exit_code_1_before_the_port_is_open(binary, checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "shape")
    config = json.loads((tmp_path / "shape/config.json").read_text())
    (tmp_path / "shape/config.json").write_text(json.dumps(config | {"intermediate_size": 8}))
    shutil.copytree(checkpoint, tmp_path / "tokenizer")
    (tmp_path / "tokenizer/tokenizer.json").unlink()
    (tmp_path / "json").mkdir()
    (tmp_path / "json/config.json").write_text("{")
    faults = {"shape": "gate_proj", "tokenizer": "tokenizer.json", "json": "config.json", "nothing": "no such directory"}
    for name, named in faults.items():
        failed = run(binary, "serve", tmp_path / name, "--port", "0")
        assert failed.returncode == 1
        last = failed.stderr.splitlines()[-1]
        assert last.startswith("error: ") and named in last, last
        assert "listening" not in failed.stderr
    small = run(binary, "serve", checkpoint, "--port", "0", "--kv-cache-memory", "1KiB")
    assert small.returncode == 1 and "--kv-cache-memory" in small.stderr and "listening" not in small.stderr


def test_a_port_in_use_is_named(binary, checkpoint):
    server = Server()
    port = server.url.rsplit(":", 1)[1]
    failed = run(binary, "serve", checkpoint, "--port", port)
    assert failed.returncode == 1 and port in failed.stderr
    server.process.terminate()
    assert server.process.wait(timeout=120) == 0
