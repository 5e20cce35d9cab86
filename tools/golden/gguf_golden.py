"""Tiny GGUF files of every type and architecture, and what transformers makes of them in float32 once the package gguf has dequantised them.

    python tools/golden/gguf_golden.py [NAME …]      writes tests/golden/quantised
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import json
import re
import shutil
import sys
import tempfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf import quants
from safetensors.torch import load_file, save_file

import logits
import weights
from families import FAMILIES, Family

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"

# Parts of a layer, as transformers and GGUF call them.
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
GEMMA_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GPT_OSS_PARTS = {"post_attention_layernorm": "post_attention_norm"}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
EXPERTS |= {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}
TABLES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

# Which tokenizer each golden checkpoint's is, as GGUF says it.
TOKENIZERS = {"llama": ("llama", "default"), "llama-llama3": ("gpt2", "llama-bpe"), "qwen2": ("gpt2", "qwen2")}


@dataclass(frozen=True)
class File:
    """A model of an architecture. `types` are taken in turn by its matrices."""

    name: str
    family: str
    architecture: str
    types: list[Type | int]
    tokenizer: str
    overrides: dict = field(default_factory=dict)
    embedding: Type = Type.Q8_0
    parts: int = 1
    # Queries, keys and values as one tensor, as llama.cpp's converter has them with --fuse-qkv.
    fused: bool = False
    # What the experts' gates are of, if not of the first type.
    gates: Type | None = None


# The output head, then of two layers down, gate and up, k, o, q and v. What is computed together is of codes or of floats.
LEGACY = [Type.Q8_0]
LEGACY += [Type.F16, Type.Q5_1, Type.Q4_0, Type.Q4_1, Type.BF16, Type.Q5_0, Type.Q8_0]
LEGACY += [Type.MXFP4, Type.Q4_1, Type.Q4_1, Type.F16, Type.Q8_0, Type.BF16, Type.F16]
# The same without a head; some of what is computed together is of codes and some of floats, as in unsloth's files.
MIXED = [Type.Q8_0, Type.Q8_0, Type.F16, Type.BF16, Type.F16, Type.Q8_0, Type.Q8_0]
MIXED += [Type.BF16, Type.BF16, Type.MXFP4, Type.Q4_0, Type.Q8_0, Type.F16, Type.F32]
# Those with whole numbers together.
K_TYPES = [Type.Q4_K, Type.Q6_K, Type.Q5_K, Type.Q3_K, Type.IQ4_XS, Type.Q2_K, Type.IQ4_NL]
GRIDS = [Type.IQ3_S, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_XS, Type.IQ3_XXS, Type.IQ1_S, Type.TQ1_0, Type.IQ2_S, Type.IQ1_M, Type.TQ2_0]
# Numbers of types that the package has no name for: Q2_0.
Q2_0 = 42
BITS = [Type.Q1_0, Q2_0, Type.NVFP4]
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}

GPT_OSS_ROPE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False, "original_max_position_embeddings": 64}

FILES = [
    File("gguf-llama", "llama", "llama", LEGACY, "llama", embedding=Type.Q5_0),
    File("gguf-llama3", "llama-llama3", "llama", K_TYPES, "llama-llama3", WIDE, Type.Q6_K),
    File("gguf-qwen2", "qwen2", "qwen2", [Type.Q8_0, Type.Q4_0], "qwen2", parts=3),
    File("gguf-mixed", "qwen2", "qwen2", MIXED, "qwen2"),
    File("gguf-fused", "qwen2", "qwen2", [Type.Q8_0], "qwen2", fused=True),
    File("gguf-qwen3", "qwen3", "qwen3", [Type.Q8_0], "qwen2", embedding=Type.F16),
    File("gguf-gemma3", "gemma3", "gemma3", [Type.Q8_0, Type.Q5_1], "llama", {"hidden_size": 64, "query_pre_attn_scalar": 256}),
    File("gguf-mixtral", "mixtral", "llama", [Type.Q4_0], "llama", {"intermediate_size": 64}),
    File("gguf-qwen2-moe", "qwen2-moe", "qwen2moe", [Type.Q4_0], "qwen2", {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "mlp_only_layers": []}),
    File("gguf-qwen3-moe", "qwen3-moe", "qwen3moe", [Type.Q8_0], "qwen2", {"moe_intermediate_size": 32, "decoder_sparse_step": 1}),
    File("gguf-mixed-moe", "qwen3-moe", "qwen3moe", [Type.Q8_0], "qwen2", {"moe_intermediate_size": 32, "decoder_sparse_step": 1}, gates=Type.BF16),
    File("gguf-grids", "llama-llama3", "llama", GRIDS, "llama-llama3", WIDE, Type.IQ3_XXS),
    File("gguf-bits", "qwen3", "qwen3", BITS, "qwen2", {"hidden_size": 128, "intermediate_size": 128}, Type.Q1_0),
    File("gguf-nvfp4", "qwen3-moe", "qwen3moe", [Type.NVFP4], "qwen2", {"hidden_size": 64, "moe_intermediate_size": 64, "head_dim": 64, "intermediate_size": 64, "decoder_sparse_step": 1}),
    # With the betas that files do not say.
    File("gguf-gpt-oss", "gpt-oss", "gpt-oss", [Type.MXFP4, Type.Q8_0], "llama", {"intermediate_size": 32, "rope_parameters": GPT_OSS_ROPE}),
]


# Where types that the package reads and does not write have their factors, float16.
FACTORS = {Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.IQ4_NL: (0,), Type.IQ4_XS: (0,)}
FACTORS |= {kind: (0,) for kind in (Type.IQ1_S, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S, Type.Q1_0, Q2_0)}
FACTORS |= {Type.TQ1_0: (52,), Type.TQ2_0: (64,), Type.IQ1_M: (), Type.NVFP4: ()}
# How many times the scales the middle code is: as much is taken away.
MIDDLE = {Type.Q2_K: 1.5, Type.Q4_K: 7.5, Type.Q5_K: 15.5}


def _sizes(kind: Type | int) -> tuple[int, int]:
    """Elements and bytes of a block."""
    return (64, 18) if kind == Q2_0 else gguf.GGML_QUANT_SIZES[kind]


def _dequantize(data: np.ndarray, kind: Type | int) -> np.ndarray:
    """As the package does; what it has no formula for is llama.cpp's `dequantize_row_q1_0` and `dequantize_row_q2_0`."""
    if kind not in (Type.Q1_0, Q2_0):
        return quants.dequantize(data, kind).astype(np.float32)
    elements, size = _sizes(kind)
    blocks = data.reshape(-1, size)
    bits = 8 * (size - 2) // elements
    codes = blocks[:, 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    values = codes.reshape(-1, elements).astype(np.float32)
    values = values * 2 - 1 if kind == Type.Q1_0 else values - 1
    return (blocks[:, :2].copy().view(np.float16).astype(np.float32) * values).reshape(*data.shape[:-1], -1)


def _random_blocks(name: str, kind: Type | int, shape: tuple[int, int], deviation: float) -> np.ndarray:
    """Blocks whose every bit is used, for types that the package reads and does not write."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    per_block, size = _sizes(kind)
    blocks = generator.integers(0, 256, size=(shape[0] * shape[1] // per_block, size), dtype=np.uint8)

    def with_factor(factor: np.ndarray) -> np.ndarray:
        for at, times in zip(FACTORS[kind], (1.0, MIDDLE.get(kind, 1.0))):
            blocks[:, at : at + 2] = (factor * times).astype(np.float16).reshape(-1, 1).view(np.uint8)
        if kind == Type.IQ1_M:
            # The upper half of each other byte of the scales.
            bits = factor.astype(np.float16).view(np.uint16)
            for part in range(4):
                blocks[:, 49 + 2 * part] = blocks[:, 49 + 2 * part] & 15 | (bits >> (4 * part) & 15).astype(np.uint8) << 4
        if kind == Type.NVFP4:
            # Scales of a block from 7/8 to 15/8, the sign not heeded; the first four times none: 0 and what is no number.
            blocks[:, :4] = blocks[:, :4] & 0x87 | 0x38
            blocks[0, :4] = (0, 0x7F, 0x80, 0x7F)
        return blocks

    spread = generator.uniform(0.5, 1.5, size=blocks.shape[0])
    ones = _dequantize(with_factor(np.full(blocks.shape[0], 2.0**-7)), kind).std() * 2.0**7
    return with_factor(spread * deviation / ones).reshape(shape[0], -1)


def _encode(name: str, kind: Type | int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as the file has it, and as the package reads it."""
    if kind in FACTORS:
        data = _random_blocks(name, kind, weight.shape, float(weight.std()))
    elif kind == Type.F16:
        data = weight.astype(np.float16)
    else:
        data = quants.quantize(weight.astype(np.float32), kind)
    return data, _dequantize(data, kind).reshape(weight.shape)


def _factor(read: np.ndarray, weight: np.ndarray) -> np.float32:
    """What multiplies all scales of a matrix of NVFP4."""
    return np.float32(weight.std() / read.std())


def _interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Queries and keys as `llama` has them: the two halves of a head's rows in turn."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _deinterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _translated(name: str, architecture: str) -> str:
    base, end = name.rsplit(".", 1)
    if base in TABLES:
        return f"{TABLES[base]}.{end}"
    number, part = base.removeprefix("model.layers.").split(".", 1)
    if end == "sinks":
        return f"blk.{number}.attn_sinks.weight"
    parts = PARTS | {"gemma3": GEMMA_PARTS, "gpt-oss": GPT_OSS_PARTS}.get(architecture, {})
    return f"blk.{number}.{parts[part]}.{end}"


def _add_joint_experts(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: Type) -> np.ndarray:
    """gpt-oss' experts, gates and ups apart and outputs before inputs; returns what the package reads, as it was."""
    number, part = name.removeprefix("model.layers.").split(".mlp.experts.")
    is_bias = part.endswith("_bias")
    rows = weight if is_bias else weight.swapaxes(1, 2)
    exact = np.empty_like(rows)
    gate_up = {"ffn_gate_exps": slice(0, None, 2), "ffn_up_exps": slice(1, None, 2)}
    for translated, of_it in (gate_up if part.startswith("gate_up") else {"ffn_down_exps": slice(None)}).items():
        own = np.ascontiguousarray(rows[:, of_it])
        if is_bias:
            writer.add_tensor(f"blk.{number}.{translated}.bias", own)
            exact[:, of_it] = own
            continue
        data, read = zip(*(_encode(name, kind, matrix) for matrix in own))
        writer.add_tensor(f"blk.{number}.{translated}.weight", np.stack(data), raw_dtype=kind)
        exact[:, of_it] = np.stack(read)
    return exact if is_bias else exact.swapaxes(1, 2)


def _add_matrix(writer: gguf.GGUFWriter, name: str, data: np.ndarray, kind: Type | int) -> None:
    """Under a type that the package may not know: under its own it could not tell how many elements that are."""
    if kind != Q2_0:
        return writer.add_tensor(name, data, raw_dtype=kind)
    elements, size = _sizes(kind)
    shape = (*data.shape[:-1], data.shape[-1] // size * elements)
    writer.add_tensor_info(name, shape, np.dtype(np.float32), data.nbytes, raw_dtype=kind)
    writer.tensors[-1][name].tensor = data


def _add_config(writer: gguf.GGUFWriter, file: File, config) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if file.architecture != "llama":
            writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
        if file.architecture == "qwen2moe":
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if file.architecture in ("gemma3", "gpt-oss"):
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head))


def _llama3_factors(rope: dict, head: int) -> np.ndarray:
    """As llama.cpp's converter computes them."""
    low_length = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high_length = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    factors = []
    for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, head, 2) / head):
        length = 2 * np.pi / frequency
        if length < high_length:
            factors.append(1.0)
        elif length > low_length:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter, name: str, rows: int) -> None:
    """That of a golden checkpoint."""
    directory = GOLDEN / "models" / name
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    model, pre = TOKENIZERS[name]
    ids = dict(tokenizer["model"]["vocab"])
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    ids |= {content: token["id"] for content, token in added.items()}
    tokens = [f"[PAD{id}]" for id in range(rows)]
    kinds = [gguf.TokenType.UNUSED] * rows
    for content, id in ids.items():
        tokens[id] = content
        is_byte = model == "llama" and len(content) == 6 and content.startswith("<0x")
        kinds[id] = gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL
        if content in added:
            kinds[id] = gguf.TokenType.CONTROL if added[content]["special"] else gguf.TokenType.USER_DEFINED
    if model == "llama" and "<unk>" in ids:
        kinds[ids["<unk>"]] = gguf.TokenType.UNKNOWN
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if model == "llama":
        # Those that come first when pairs are merged have the highest scores.
        rank = {"".join(merge): at for at, merge in reversed(list(enumerate(tokenizer["model"]["merges"])))}
        writer.add_token_scores([-float(rank.get(token, 0)) if token in rank else -1000.0 for token in tokens])
    else:
        writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    for kind, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        token = settings.get(f"{kind}_token")
        if token is not None:
            add(ids[token if isinstance(token, str) else token["content"]])
    template = directory / "chat_template.jinja"
    text = template.read_text() if template.exists() else settings.get("chat_template")
    if text:
        writer.add_chat_template(text)


def make(file: File, root: Path) -> None:
    family: Family = next(family for family in FAMILIES if family.name == file.family)
    family = replace(family, name=file.name, overrides=family.overrides | file.overrides, prompt_lengths=(7, 33), beyond_lengths=())
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "plain"
        config = family.config(**family.overrides, bos_token_id=1, eos_token_id=2)
        model = family.model(config)
        weights.fill(model, family.name, family.norm_mean, family.embedding_deviation, family.gate_up_deviation)
        model.float().save_pretrained(plain)
        stored = {name: tensor.numpy() for name, tensor in load_file(plain / "model.safetensors").items()}
        directory = root / "models" / file.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        split = {"split_max_tensors": -(-len(stored) // file.parts)} if file.parts > 1 else {}
        writer = gguf.GGUFWriter(directory / "model.gguf", file.architecture, **split)
        _add_config(writer, file, config)
        _add_tokenizer(writer, file.tokenizer, family.overrides["vocab_size"])
        exact, experts, turn = {}, {}, 0
        projections: dict[str, list[np.ndarray]] = {}

        def add(translated: str, data: np.ndarray, kind: Type | int | None) -> None:
            """With its type, if it is a matrix. Names come in the order k, q, v."""
            part = re.fullmatch(r"(blk\.\d+\.attn_)[kqv](\.\w+)", translated)
            if file.fused and part:
                translated = f"{part[1]}qkv{part[2]}"
                projections.setdefault(translated, []).append(data)
                if len(projections[translated]) < 3:
                    return
                k, q, v = projections[translated]
                data = np.concatenate([q, k, v])
            if kind is None:
                writer.add_tensor(translated, data)
            else:
                _add_matrix(writer, translated, data, kind)

        gemma = file.architecture == "gemma3"
        for name, weight in stored.items():
            if file.architecture == "gpt-oss" and ".experts." in name:
                exact[name] = _add_joint_experts(writer, name, weight, file.types[0])
                continue
            if ".experts." in name:
                prefix, rest = name.split(".experts.")
                expert, projection, _ = rest.split(".")
                kind = file.types[0] if file.gates is None or projection != "gate_proj" else file.gates
                data, exact[name] = _encode(name, kind, weight)
                factor = _factor(exact[name], weight) if kind == Type.NVFP4 else np.float32(1)
                exact[name] = exact[name] * factor
                number = prefix.removeprefix("model.layers.").split(".")[0]
                experts.setdefault(f"blk.{number}.{EXPERTS[projection]}", {})[int(expert)] = (data, factor, kind)
                continue
            translated = _translated(name, file.architecture)
            heads = {"attn_q.": config.num_attention_heads, "attn_k.": config.num_key_value_heads}
            heads = next((n for part, n in heads.items() if part in translated and file.architecture == "llama"), None)
            if weight.ndim == 1 or translated.endswith(("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")):
                data = weight + 1 if gemma and "norm" in name else weight
                data = data[0] if translated.endswith("ffn_gate_inp_shexp.weight") else data
                exact[name] = data - 1 if gemma and "norm" in name else weight
                add(translated, _interleave(data, heads) if heads else data, None)
                continue
            kind = file.embedding if "embed" in name else file.types[turn % len(file.types)]
            turn += "embed" not in name
            data, read = _encode(name, kind, _interleave(weight, heads) if heads else weight)
            if kind == Type.NVFP4 and "embed" not in name:
                factor = _factor(read, weight)
                read = read * factor
                writer.add_tensor(translated.removesuffix("weight") + "scale", np.array([factor]))
                writer.add_tensor(translated.removesuffix("weight") + "input_scale", np.array([3], dtype=np.float32))
            exact[name] = _deinterleave(read, heads) if heads else read
            add(translated, data, kind)
        for name, parts in experts.items():
            data, factors, [kind, *_] = zip(*(parts[e] for e in range(len(parts))))
            writer.add_tensor(f"{name}.weight", np.stack(data), raw_dtype=kind)
            if kind == Type.NVFP4:
                writer.add_tensor(f"{name}.scale", np.array(factors))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        save_file({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in exact.items()}, plain / "model.safetensors")
        logits.make(family, plain, root / "logits", {1, 2}, family.overrides["vocab_size"])


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for file in FILES:
        if len(sys.argv) == 1 or file.name in sys.argv[1:]:
            make(file, GOLDEN / "quantised")
            print(f"made {file.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
