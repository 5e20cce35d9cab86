"""Files that are not what they should be, or change under the server: pipes, bombs, damage, a weights file that shrinks.

Knows files, no tensors.
"""

import asyncio
import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .client import Answer, ask, texts_within_texts
from .report import Report
from .server import Server, StartError
from .stage import CHAT, KNOWN_QUESTION, Options, fingerprint

CHECKPOINT = Path(__file__).parents[2] / "tests/golden/models/qwen2"

# What clang needs to make the software device's kernels, once.
COMPILE_SECONDS = 300


async def run(options: Options, report: Report) -> None:
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        if options.model is None:
            await _damages(options, report, Path(directory))
            await _odd_files(options, report, Path(directory))
        await _shrinks_while_loading(options, report, Path(directory))
        if not options.core and any(shutil.which(name) for name in ("clang++-19", "clang-19", "clang++")):
            await _shrinks_in_use(options, report, Path(directory))


# --- The bundled model, unpacked to the user's cache. ---


def _truncate(part: float) -> Callable[[Path, random.Random], None]:
    def damage(model: Path, _: random.Random) -> None:
        file = model / "model.safetensors"
        with file.open("r+b") as weights:
            weights.truncate(int(file.stat().st_size * part))

    return damage


def _flip(name: str, bits: int) -> Callable[[Path, random.Random], None]:
    def damage(model: Path, rng: random.Random) -> None:
        content = bytearray((model / name).read_bytes())
        for _ in range(bits):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (model / name).write_bytes(content)

    return damage


def _flip_an_exponent(model: Path, rng: random.Random) -> None:
    file = model / "model.safetensors"
    content = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(200):
        content[start + rng.randrange((len(content) - start) // 2) * 2 + 1] ^= 0x20
    file.write_bytes(content)


def _same_size_and_time(model: Path, rng: random.Random) -> None:
    file = model / "model.safetensors"
    times = file.stat()
    _flip_an_exponent(model, rng)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _replace_by_directory(model: Path, _: random.Random) -> None:
    (model / "config.json").unlink()
    (model / "config.json").mkdir()


def _replace_all_by_file(model: Path, _: random.Random) -> None:
    shutil.rmtree(model)
    model.write_text("not a directory")


def _dangling_link(model: Path, _: random.Random) -> None:
    shutil.rmtree(model)
    model.symlink_to(model.with_name("nowhere"))


def _empty(model: Path, _: random.Random) -> None:
    for file in model.iterdir():
        file.unlink()


def _stale_partial(model: Path, _: random.Random) -> None:
    """What a start that was killed while it unpacked leaves."""
    for process in (999_999_999, 1):
        partial = model.with_name(f"{model.name}.{process}")
        partial.mkdir()
        (partial / "config.json").write_text("{")
    shutil.rmtree(model)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "weights cut in half": _truncate(0.5),
    "weights without their last byte": _truncate(0.9999999),
    "empty weights": _truncate(0),
    "no tokenizer": lambda model, _: (model / "tokenizer.json").unlink(),
    "no weights": lambda model, _: (model / "model.safetensors").unlink(),
    "no chat template": lambda model, _: (model / "chat_template.jinja").unlink(),
    "no generation config": lambda model, _: (model / "generation_config.json").unlink(),
    "flipped exponents in the weights": _flip_an_exponent,
    "flipped exponents, size and time kept": _same_size_and_time,
    "one flipped bit in the weights": _flip("model.safetensors", 1),
    "flipped bits in the tokenizer": _flip("tokenizer.json", 20),
    "a flipped bit in the configuration": _flip("config.json", 1),
    "a flipped bit in the template": _flip("chat_template.jinja", 1),
    "a garbage configuration": lambda model, _: (model / "config.json").write_bytes(b"\0" * 1000),
    "a directory for a file": _replace_by_directory,
    "a file for the directory": _replace_all_by_file,
    "a link to nowhere": _dangling_link,
    "an empty directory": _empty,
    "stale partial directories": _stale_partial,
    "an extra file": lambda model, _: (model / "tekken.json").write_text("{"),
}  # fmt: skip

# What may belong to somebody: replaced, or left alone with an error that names it.
IN_THE_WAY = ["a directory for a file", "a file for the directory", "a link to nowhere"]

CORE = ["weights cut in half", "no tokenizer", "flipped exponents in the weights", "stale partial directories"]
CORE += ["flipped bits in the tokenizer", "an empty directory"]


async def _damages(options: Options, report: Report, directory: Path) -> None:
    rng = random.Random(f"{options.seed} damages")
    sound = await _answer(options, directory)
    models = list((directory / "cache/vllm-apple").glob("demo-*"))
    if not report.check(len(models) == 1, f"the first start leaves {[model.name for model in models]} in the cache"):
        return
    model = models[0]
    files = {file.name: file.read_bytes() for file in model.iterdir()}
    for name in CORE if options.core else DAMAGES:
        how = f"XDG_CACHE_HOME/vllm-apple/{model.name}: {name} (DAMAGES in files.py), then vllm-apple serve"
        DAMAGES[name](model, rng)
        report.count("damaged files")
        try:
            answer = await _answer(options, directory)
            right = fingerprint(answer) == fingerprint(sound)
            report.check(right, f"{name}: the next start answers {answer.short()[-400:]}", how)
        except StartError as error:
            told = name in IN_THE_WAY and error.code == 1 and str(model) in str(error)
            report.check(told, f"{name}: the next start fails: {str(error).strip()[-300:]}", how)
        # A file that was put aside is not partial.
        partial = sorted(path.name for path in model.parent.iterdir() if path != model and path.is_dir())
        report.check(not partial, f"{name}: partial directories are left: {partial}", how)
        _restore(model, files)
    await _two_starts(options, report, directory, model, rng)


def _restore(model: Path, files: dict[str, bytes]) -> None:
    for path in model.parent.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    model.mkdir()
    for name, content in files.items():
        (model / name).write_bytes(content)


async def _two_starts(options: Options, report: Report, directory: Path, model: Path, rng: random.Random) -> None:
    """Several starts at once over one damaged model, and one that is killed while it repairs."""
    how = (
        f"XDG_CACHE_HOME/vllm-apple/{model.name}: cut model.safetensors in half, then start the server 3 times at once"
    )
    _truncate(0.5)(model, rng)
    report.count("damaged files")
    servers = [Server(options.binary, directory) for _ in range(3)]
    for server in servers:
        try:
            await server.ready()
            answer = await ask(server.port, CHAT, KNOWN_QUESTION)
            report.check(b"Oslo" in answer.body, f"three starts at once: one answers {answer.short()}", how)
        except StartError as error:
            report.check(False, f"three starts at once: one fails: {str(error).strip()[-300:]}", how)
    for server in servers:
        server.kill()
    for milliseconds in (1, 3, 8, 20):
        shutil.rmtree(model, ignore_errors=True)
        report.count("damaged files")
        server = Server(options.binary, directory)
        await asyncio.sleep(milliseconds / 1000)
        server.kill()
    try:
        answer = await _answer(options, directory)
        report.check(b"Oslo" in answer.body, f"after killed starts: {answer.short()}")
    except StartError as error:
        report.check(False, f"after killed starts: the next start fails: {str(error).strip()[-300:]}")
    left = sorted(path.name for path in model.parent.iterdir() if path != model and path.is_dir())
    report.check(not left, f"after killed starts partial directories are left: {left}")


async def _answer(options: Options, directory: Path) -> Answer:
    """What a new server on the bundled model answers to the known question.

    Raises StartError.
    """
    server = Server(options.binary, directory)
    try:
        await server.ready(60)
        return await ask(server.port, CHAT, KNOWN_QUESTION)
    finally:
        server.kill()


# --- A checkpoint with files that are not what they should be: an error that names the file, soon. ---


def _edit(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(model: Path) -> None:
        content = json.loads((model / name).read_text())
        change(content)
        (model / name).write_text(json.dumps(content))

    return edit


def _pipe(name: str) -> Callable[[Path], None]:
    def replace(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)

    return replace


def _sparse(name: str) -> Callable[[Path], None]:
    def grow(model: Path) -> None:
        with (model / name).open("ab") as file:
            file.truncate(3 << 30)

    return grow


def _deep(name: str) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        text = (model / name).read_text().rstrip()
        (model / name).write_text(f'{text[:-1]}, "decoder": {texts_within_texts()}}}')

    return write


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
MANY_TOKENS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 1000,
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"x": {"id": "x", "ids": [1] * 100_000, "tokens": ["x"] * 100_000}},
}

# The file that the error names, and what is done to it.
ODD: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{f"a pipe: {name}": (name, _pipe(name)) for name in (
        "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
        "generation_config.json", "chat_template.jinja")},
    **{f"3 GB: {name}": (name, _sparse(name)) for name in (
        "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")},
    "a normalizer that doubles 30 times": ("tokenizer.json", _edit("tokenizer.json", lambda t: t.update(
        normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 30}))),
    "a normalizer that prepends 300 MB": ("tokenizer.json", _edit("tokenizer.json", lambda t: t.update(
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 10**6}] * 300}))),
    "a decoder that doubles 30 times": ("tokenizer.json", _edit("tokenizer.json", lambda t: t.update(
        decoder={"type": "Sequence", "decoders": [t["decoder"], *[DOUBLE] * 30]}))),
    "a post-processor that adds 100 million tokens": ("tokenizer.json", _edit("tokenizer.json", lambda t: t.update(
        post_processor=MANY_TOKENS))),
    "a map of characters of 4 GB": ("tokenizer.json", _edit("tokenizer.json", lambda t: t.update(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "////////"}))),
    **{f"texts within texts: {name}": (name, _deep(name)) for name in (
        "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")},
    "five million values": ("generation_config.json", _edit("generation_config.json", lambda g: g.update(x=[0] * 5_000_000))),
    "layers that config.json does not know": ("model.safetensors", _edit("config.json", lambda c: c.update(
        num_hidden_layers=3, layer_types=c["layer_types"][:3]))),
    "an angle without end": ("config.json", _edit("config.json", lambda c: c["rope_parameters"].update(rope_theta=1e300))),
    "a temperature of -1": ("generation_config.json", _edit("generation_config.json", lambda g: g.update(
        temperature=-1))),
    "a normalizer without a type": ("tokenizer.json", _edit("tokenizer.json", lambda t: t.update(
        normalizer={"pattern": {"String": "e"}, "content": "e" * 2000}))),
    "a normalizer of an unknown type": ("tokenizer.json", _edit("tokenizer.json", lambda t: t.update(
        normalizer={"type": 3, "pattern": {"String": "e"}, "content": "e" * 2000}))),
    "an end token that is a number": ("tokenizer_config.json", _edit("tokenizer_config.json", lambda t: t.update(eos_token=5))),
    "a chat template that is a number": ("tokenizer_config.json", lambda model: (
        (model / "chat_template.jinja").unlink(missing_ok=True),
        _edit("tokenizer_config.json", lambda t: t.update(chat_template=5))(model))),
    "a scaling without a type": ("config.json", _edit("config.json", lambda c: c["rope_parameters"].update(
        rope_type=None, factor=4.0))),
    "a top_p of 7": ("generation_config.json", _edit("generation_config.json", lambda g: g.update(top_p=7))),
}  # fmt: skip

CORE_ODD = ["a pipe: config.json", "a pipe: chat_template.jinja", "3 GB: tokenizer_config.json", "a temperature of -1"]
CORE_ODD += ["texts within texts: config.json", "texts within texts: tokenizer.json", "layers that config.json does not know"]
CORE_ODD += ["a normalizer without a type", "a scaling without a type", "a normalizer that doubles 30 times", "a post-processor that adds 100 million tokens"]


async def _odd_files(options: Options, report: Report, directory: Path) -> None:
    server = Server(options.binary, directory)
    await server.ready(60)
    server.kill()
    sound = next((directory / "cache/vllm-apple").glob("demo-*"))
    for at, name in enumerate(CORE_ODD if options.core else ODD):
        file, damage = ODD[name]
        model = directory / f"odd-{at}"
        shutil.copytree(sound, model)
        damage(model)
        how = f"a copy of the bundled model with {name} (ODD in files.py), then vllm-apple serve on it"
        report.count("damaged files")
        server = Server(options.binary, directory, model=model)
        try:
            await server.ready(20)
            report.check(False, f"{name}: the server starts", how)
        except StartError as error:
            named = error.code == 1 and file in str(error)
            report.check(named, f"{name}: ends with {error.code}: {str(error).strip()[-300:]}", how)
        server.kill()
        shutil.rmtree(model)


# --- A checkpoint whose weights file shrinks. ---


def _large_checkpoint(directory: Path, layers: int) -> Path:
    """A checkpoint like the small golden one with large matrices of zeros: a sparse file that takes a while to load."""
    target = directory / "large"
    shutil.copytree(CHECKPOINT, target)
    config = json.loads((target / "config.json").read_text())
    hidden, inner = 1024, 4096
    heads = config["num_attention_heads"]
    config |= {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "max_window_layers": layers,
    }
    config["head_dim"] = hidden // heads
    keys = config["num_key_value_heads"] * hidden // heads
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        parts = {
            "input_layernorm.weight": [hidden],
            "post_attention_layernorm.weight": [hidden],
            "mlp.gate_proj.weight": [inner, hidden],
            "mlp.up_proj.weight": [inner, hidden],
            "mlp.down_proj.weight": [hidden, inner],
            "self_attn.q_proj.weight": [hidden, hidden],
            "self_attn.q_proj.bias": [hidden],
            "self_attn.k_proj.weight": [keys, hidden],
            "self_attn.k_proj.bias": [keys],
            "self_attn.v_proj.weight": [keys, hidden],
            "self_attn.v_proj.bias": [keys],
            "self_attn.o_proj.weight": [hidden, hidden],
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (target / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    (target / "config.json").write_text(json.dumps(config))
    return target


def _shrink(file: Path, part: float) -> None:
    with file.open("r+b") as weights:
        weights.truncate(int(file.stat().st_size * part))


def _told(server: Server, code: int | None, file: Path) -> bool:
    """Whether it ended as it should: with code 1 and an error that names the file."""
    errors = [line for line in server.log().splitlines() if "error" in line.lower()]
    return code == 1 and any(file.name in line for line in errors)


async def _shrinks_while_loading(options: Options, report: Report, directory: Path) -> None:
    """The file loses its second half at several moments of the load. A load that was faster has nothing to tell."""
    hit = 0
    for attempt in range(options.scale(10, 5)):
        shutil.rmtree(directory / "large", ignore_errors=True)
        model = _large_checkpoint(directory, layers=20)
        file = model / "model.safetensors"
        server = Server(options.binary, directory, "--device", "cpu", model=model)
        await server.listening()
        await asyncio.sleep(attempt * 0.02)
        _shrink(file, 0.3)
        report.count("damaged files")
        how = f"{attempt * 20} ms after `listening on`: truncate -s -70% of a 500 MB checkpoint's model.safetensors"
        while server.alive() and "the model is ready" not in server.log():
            await asyncio.sleep(0.01)
        code = await server.ended(0.5)
        if code is not None:
            hit += 1
            told = _told(server, code, file)
            report.check(told, f"shrunk while loading: exit code {code}: {server.last_words()}", how)
        server.kill()
    shutil.rmtree(directory / "large")
    report.check(hit > 0, "shrunk while loading: every load was faster than the attack; nothing was checked")


async def _shrinks_in_use(options: Options, report: Report, directory: Path) -> None:
    """A device that computes from the mapped file: the next step ends the server with an error that names the file."""
    for part in (0.5, 0.0):
        model = directory / "mapped"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(CHECKPOINT, model)
        file = model / "model.safetensors"
        how = f"vllm-apple serve qwen2 --device software-metal; truncate model.safetensors to {part:.0%}; ask"
        server = Server(options.binary, directory, "--device", "software-metal", "--max-model-len", "128",
                        model=model, address_space=None, kv_cache="1MiB")  # fmt: skip
        try:
            await server.ready(COMPILE_SECONDS)
        except StartError as error:
            report.check(False, f"--device software-metal does not start: {str(error).strip()[-300:]}", how)
            return
        body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
        answer = await ask(server.port, "/v1/completions", body, timeout=120)
        report.check(answer.status == 200, f"on the software device: {answer.short()}", how)
        _shrink(file, part)
        report.count("damaged files")
        answer = await ask(server.port, "/v1/completions", body, timeout=120)
        code = await server.ended(30)
        told = _told(server, code, file)
        report.check(
            told,
            f"shrunk in use: exit code {code}, the request gets {answer.short()[:100]}: {server.last_words()}",
            how,
        )
        server.kill()
