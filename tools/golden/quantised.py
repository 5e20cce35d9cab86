"""Tiny checkpoints in the formats of quantised weights, and what transformers makes of them in float32 once the format's own package has
dequantised them.

    python tools/golden/quantised.py [NAME …]      writes tests/golden/quantised
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import functools
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

import torch
import transformers
from safetensors.torch import load_file, save_file

import logits
import weights
from families import FAMILIES, Family
from spellings import (
    asymmetric_integers,
    auto_round,
    awq,
    float_quantized,
    fp4,
    fp8_block,
    fp8_tensor,
    gptq,
    mlx_floats,
    mlx_gpt_oss,
    mlx_mixed,
    mlx_moe,
    mlx_mxfp4,
    modelopt_mixed,
    modelopt_nvfp4,
    mxfp4_experts,
    w2_to_w7,
    w4a16,
    w4a16_act_order,
    w8a16,
    Spelt,
)

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "quantised"


@dataclass(frozen=True)
class Format:
    """How a checkpoint is quantised. `spell` gets a matrix and its name; None leaves it as it is."""

    name: str
    family: str
    config: dict
    spell: Callable[[str, torch.Tensor], Spelt | None]
    # Of everything that is not quantised.
    dtype: torch.dtype = torch.bfloat16
    overrides: dict | None = None
    # The key of `config` in config.json.
    key: str = "quantization_config"
    # What becomes of transformers' names.
    renamed: tuple[tuple[str, str], ...] = ()


# Wide enough for two blocks of 128, the second of them cut.
BLOCKS = {"intermediate_size": 168}

# Mixtral's experts as transformers calls them in memory.
MEMORY = (("block_sparse_moe", "mlp"), (".w1.", ".gate_proj."), (".w3.", ".up_proj."), (".w2.", ".down_proj."))

AUTO_ROUND = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 32,
    "data_type": "int",
    "sym": False,
    "extra_config": {
        "model.layers.0.mlp.down_proj": {"bits": 16, "data_type": "float"},
        "model.layers.1.self_attn.o_proj": {"bits": 8, "group_size": 64},
    },
}

FORMATS = [
    Format("mlx-affine", "llama", {"group_size": 32, "bits": 4, "mode": "affine"}, mlx_mixed, key="quantization"),
    Format("mlx-mxfp4", "qwen2", {"group_size": 32, "bits": 4, "mode": "mxfp4"}, mlx_mxfp4, key="quantization"),
    Format("mlx-mxfp8", "llama", {"group_size": 32, "bits": 8, "mode": "mxfp8"}, mlx_floats(8, 32, "mxfp8"), key="quantization"),
    Format("mlx-nvfp4", "qwen3", {"group_size": 16, "bits": 4, "mode": "nvfp4"}, mlx_floats(4, 16, "nvfp4"), key="quantization"),
    Format("mlx-moe", "qwen3-moe", {"group_size": 32, "bits": 4}, mlx_moe, overrides={"moe_intermediate_size": 32, "intermediate_size": 96, "hidden_size": 64}, key="quantization"),
    Format("mlx-gpt-oss", "gpt-oss", {"group_size": 32, "bits": 4, "mode": "mxfp4"}, mlx_gpt_oss, overrides={"intermediate_size": 32, "num_local_experts": 5, "num_experts_per_tok": 3}, key="quantization"),
    Format("compressed-w4a16", "llama", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, w4a16),
    Format("compressed-act-order", "mistral", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, w4a16_act_order),
    Format("compressed-w8a16", "qwen3", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, w8a16),
    Format("compressed-bits", "llama", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, w2_to_w7),
    Format("compressed-asymmetric", "qwen2", {"quant_method": "compressed-tensors", "format": "mixed-precision"}, asymmetric_integers),
    Format("compressed-float", "llama", {"quant_method": "compressed-tensors", "format": "float-quantized"}, float_quantized),
    Format("compressed-nvfp4", "llama", {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, fp4(16)),
    Format("compressed-mxfp4", "qwen2", {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, fp4(32)),
    Format("awq", "qwen2", {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32}, awq, torch.float16),
    Format("gptq", "llama", {"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq(4, 32), torch.float16),
    # Whose last group has 24 or 16 columns.
    Format("gptq-narrow-end", "llama", {"quant_method": "gptq", "bits": 4, "group_size": 40}, gptq(4, 40), torch.float16),
    Format("gptq-act-order", "llama", {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, gptq(4, 32, act_order=True), torch.float16, {"attention_bias": True, "mlp_bias": True}),
    # As tools on transformers 5 save it.
    Format("gptq-3-mixtral", "mixtral", {"quant_method": "gptq", "bits": 3, "group_size": 32}, gptq(3, 32), torch.float16, {"intermediate_size": 64}, renamed=MEMORY),
    Format("gptq-moe-act-order", "qwen2-moe", {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}, gptq(4, 16, act_order=True), torch.float16, {"intermediate_size": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}),
    Format("auto-round", "llama", AUTO_ROUND, auto_round, torch.float16),
    Format("gptq-v2", "mixtral", {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}, gptq(8, 32, v2=True), torch.float16, {"intermediate_size": 64}),
    Format("fp8-block", "llama", {"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8_block(128, 128), overrides=BLOCKS),
    Format("fp8-small-block", "llama", {"quant_method": "fp8", "weight_block_size": [16, 40]}, fp8_block(16, 40)),
    Format("fp8-tensor", "qwen3-moe", {"quant_method": "fp8"}, fp8_tensor),
    Format("modelopt-nvfp4", "qwen3-moe", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, modelopt_nvfp4, overrides={"moe_intermediate_size": 48, "intermediate_size": 272}),
    Format("modelopt-mixed", "llama", {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, modelopt_mixed, overrides={"intermediate_size": 160}),
    Format("mxfp4", "gpt-oss", {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}, mxfp4_experts, overrides={"intermediate_size": 32, "num_hidden_layers": 3}),
]


def _stack_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As MLX has them: those of all experts in one tensor, under another name."""
    stacked: dict[str, list[torch.Tensor]] = {}
    for name in list(tensors):
        if ".experts.gate_up_proj" in name:
            # gpt-oss': gates and ups apart.
            both, end = tensors.pop(name), name.replace("_bias", ".bias")
            for i, part in enumerate(("gate_proj", "up_proj")):
                tensors[end.replace("gate_up_proj", part)] = both[:, i::2].contiguous()
        elif ".experts.down_proj" in name:
            tensors[name.replace("_bias", ".bias")] = tensors.pop(name)
        elif ".experts." in name:
            prefix, rest = name.split(".experts.")
            expert, end = rest.split(".", 1)
            stacked.setdefault(f"{prefix}.switch_mlp.{end}", []).append((int(expert), tensors.pop(name)))
    return tensors | {name: torch.stack([part for _, part in sorted(parts, key=lambda p: p[0])]) for name, parts in stacked.items()}


def make(form: Format, root: Path) -> None:
    family: Family = next(family for family in FAMILIES if family.name == form.family)
    family = replace(family, name=form.name, overrides=family.overrides | (form.overrides or {}), prompt_lengths=(7, 33), beyond_lengths=())
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "plain"
        model = family.model(family.config(**family.overrides, bos_token_id=1, eos_token_id=2))
        weights.fill(model, family.name, family.norm_mean, family.embedding_deviation, family.gate_up_deviation)
        model.to(form.dtype).save_pretrained(plain)
        stored = load_file(plain / "model.safetensors")
        written, exact = {}, {}
        for name, tensor in stored.items():
            own = functools.reduce(lambda own, new: own.replace(*new), form.renamed, name)
            spelt = form.spell(own, tensor)
            if spelt is None:
                written[own], exact[name] = tensor, tensor.float()
                continue
            base = own.removesuffix(".weight")
            written |= {
                base + (end if end.startswith("_") else f".{end}"): part.contiguous() for end, part in spelt[0].items()
            }
            exact[name] = spelt[1].contiguous()
        if form.key == "quantization":
            written = _stack_experts(written)
        directory = root / "models" / form.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        save_file(written, directory / "model.safetensors")
        config = json.loads((plain / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {form.key: form.config}, indent=2, sort_keys=True) + "\n")
        shutil.rmtree(root / "logits" / form.name, ignore_errors=True)
        save_file(exact, plain / "model.safetensors")
        (plain / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
        logits.make(family, plain, root / "logits", {1, 2}, family.overrides["vocab_size"])


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for form in FORMATS:
        if len(sys.argv) == 1 or form.name in sys.argv[1:]:
            make(form, GOLDEN)
            print(f"made {form.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
