"""How packages spell a quantised matrix, each with what the package itself reads there. They know no checkpoint."""

import importlib.util
import zlib
from pathlib import Path
from typing import Callable

import numpy as np
import torch

# A matrix as its file has it, by the ends of names, and as the format's package reads it.
Spelt = tuple[dict[str, torch.Tensor], torch.Tensor]


def _is_linear(name: str) -> bool:
    """Whether packages for vLLM quantise it."""
    return name.endswith("_proj.weight")


def _module(path: str, distribution: str):
    """A module of an installed package, without running the package's own __init__, which wants a GPU's libraries."""
    root = Path(importlib.util.find_spec(distribution).submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), root / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Of matrices that have the same input, which one order of columns is for.
SAME_INPUT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


def _act_order(name: str, cols: int, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random order of columns of full groups: the group of each column, and the columns of group after group."""
    layer, part = name.removesuffix(".weight").rsplit(".", 1)
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(f"{layer}.{SAME_INPUT.get(part, part)}".encode())))
    groups = torch.from_numpy(generator.permutation(cols) // group_size).int()
    return groups, groups.argsort(stable=True)


# MLX


def _from_mx(array) -> torch.Tensor:
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.uint16)).view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array).copy())


def _mlx(weight: torch.Tensor, bits: int, group_size: int, mode: str = "affine") -> Spelt:
    import mlx.core as mx

    with mx.stream(mx.cpu):
        array = mx.array(weight.float().numpy()).astype(mx.bfloat16)
        code, scales, *biases = mx.quantize(array, group_size=group_size, bits=bits, mode=mode)
        # In float32: the package would round what it says to the scales' type.
        wide = [part.astype(mx.float32) if mode == "affine" else part for part in (scales, *biases)]
        exact = mx.dequantize(code, *wide, group_size=group_size, bits=bits, mode=mode).astype(mx.float32)
        parts = {"weight": _from_mx(code), "scales": _from_mx(scales)}
        if biases:
            parts["biases"] = _from_mx(biases[0])
        return parts, _from_mx(exact)


# Every number of bits, and within q, k and v.
MLX_BITS = {"q_proj": 4, "k_proj": 8, "v_proj": 6, "o_proj": 3, "gate_proj": 4, "up_proj": 4, "down_proj": 5, "embed_tokens": 4, "lm_head": 6}


def mlx_mixed(name: str, weight: torch.Tensor) -> Spelt | None:
    if weight.ndim != 2:
        return None
    part = name.split(".")[-2]
    if ".layers.1." in name and part in ("down_proj", "o_proj"):
        return _mlx(weight, 2 if part == "down_proj" else 1, 32)
    return _mlx(weight, MLX_BITS[part], 64 if part in ("lm_head", "gate_proj", "up_proj") else 32)


def mlx_mxfp4(name: str, weight: torch.Tensor) -> Spelt | None:
    # A layer in another mode.
    if ".layers.1." in name and name.endswith("o_proj.weight"):
        return _mlx(weight, 8, 32)
    return _mlx(weight, 4, 32, "mxfp4") if weight.ndim == 2 else None


def mlx_floats(bits: int, group_size: int, mode: str) -> Callable[[str, torch.Tensor], Spelt | None]:
    return lambda _, weight: _mlx(weight, bits, group_size, mode) if weight.ndim == 2 else None


def mlx_moe(name: str, weight: torch.Tensor) -> Spelt | None:
    if name.endswith("mlp.gate.weight"):
        return _mlx(weight, 8, 64)
    if weight.ndim != 2:
        return None
    return _mlx(weight, 4, 32)


def mlx_gpt_oss(name: str, weight: torch.Tensor) -> Spelt | None:
    if weight.ndim == 3:
        spelt = [_mlx(expert.T.contiguous(), 4, 32, "mxfp4") for expert in weight]
        parts = {end: torch.stack([parts[end] for parts, _ in spelt]) for end in spelt[0][0]}
        return parts, torch.stack([exact.T for _, exact in spelt])
    return _mlx(weight, 8, 32) if name.endswith(".weight") and weight.ndim == 2 else None


# compressed-tensors


def _compressed(
    weight: torch.Tensor,
    bits: int,
    group_size: int | None,
    symmetric: bool,
    act_order: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Spelt:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize

    back = None
    if act_order:
        # What the package did as long as it had such an order: quantise sorted columns, and put them back. In the file they are as they were.
        g_idx, columns = act_order
        weight, back = weight[:, columns], columns.argsort()
    groups = weight.shape[1] // group_size if group_size else 1
    grouped = weight.float().reshape(weight.shape[0], groups, -1)
    most = 2 ** (bits - 1)
    if symmetric:
        scale = (grouped.abs().amax(-1) / (most - 0.5)).to(torch.bfloat16)
        zero = torch.zeros_like(scale, dtype=torch.int8)
    else:
        low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
        scale = ((high - low) / (2 * most - 1)).to(torch.bfloat16)
        zero = (-most - (low / scale.float()).round()).clamp(-most, most - 1).to(torch.int8)
    strategy = {"strategy": "group", "group_size": group_size} if group_size else {"strategy": "channel"}
    args = QuantizationArgs(num_bits=bits, symmetric=symmetric, **strategy)
    code = quantize(weight.float(), scale.float(), zero, args, dtype=torch.int8)
    exact = dequantize(code, scale.float(), zero, args, dtype=torch.float32)
    if act_order:
        code, exact = code[:, back], exact[:, back]
    parts = {
        "weight_packed": pack_to_int32(code, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        parts["weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0)
    if act_order:
        parts["weight_g_idx"] = g_idx
    return parts, exact


def w4a16(name: str, weight: torch.Tensor) -> Spelt | None:
    symmetric = not name.endswith(("up_proj.weight", "o_proj.weight"))
    return _compressed(weight, 4, 32, symmetric) if _is_linear(name) else None


def w8a16(name: str, weight: torch.Tensor) -> Spelt | None:
    return _compressed(weight, 8, None, True) if _is_linear(name) else None


# Every number of bits, and zero points of some.
BITS = {"q_proj": 2, "k_proj": 3, "v_proj": 5, "o_proj": 6, "gate_proj": 7, "up_proj": 3, "down_proj": 5}


def w2_to_w7(name: str, weight: torch.Tensor) -> Spelt | None:
    bits = BITS.get(name.removesuffix(".weight").rsplit(".", 1)[-1])
    return _compressed(weight, bits, 32, not name.endswith(("v_proj.weight", "up_proj.weight", "o_proj.weight"))) if bits else None


def asymmetric_integers(name: str, weight: torch.Tensor) -> Spelt | None:
    """Signed bytes with a zero point for each row, or packed codes with one for the whole matrix, which is not packed."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize

    if not _is_linear(name):
        return None
    of_bytes = name.endswith(("v_proj.weight", "o_proj.weight", "down_proj.weight"))
    bits, dims = (8, 1) if of_bytes else (4, (0, 1))
    most = 2 ** (bits - 1)
    low, high = weight.float().amin(dims, keepdim=True), weight.float().amax(dims, keepdim=True)
    scale = ((high - low) / (2 * most - 1)).to(torch.bfloat16)
    zero = (-most - (low / scale.float()).round()).clamp(-most, most - 1).to(torch.int8)
    if not of_bytes:
        scale, zero = scale.reshape(1), zero.reshape(1)
    args = QuantizationArgs(num_bits=bits, symmetric=False, strategy="channel" if of_bytes else "tensor")
    code = quantize(weight.float(), scale.float(), zero, args, dtype=torch.int8)
    parts = {"weight": code} if of_bytes else {"weight_packed": pack_to_int32(code, bits), "weight_shape": torch.tensor(weight.shape)}
    exact = dequantize(code, scale.float(), zero, args, dtype=torch.float32)
    return parts | {"weight_scale": scale, "weight_zero_point": zero}, exact


def w4a16_act_order(name: str, weight: torch.Tensor) -> Spelt | None:
    # Their rows are in the order of down_proj's columns, though they are floats.
    if not _is_linear(name) or ".layers.1." in name and name.endswith(("gate_proj.weight", "up_proj.weight")):
        return None
    bits, symmetric = 8 if name.endswith("k_proj.weight") else 4, not name.endswith(("up_proj.weight", "o_proj.weight"))
    return _compressed(weight, bits, 16, symmetric, _act_order(name, weight.shape[1], 16))


def fp4(group_size: int) -> Callable[[str, torch.Tensor], Spelt | None]:
    """Of 16 columns as NVFP4, of 32 as MXFP4."""

    def spell(name: str, weight: torch.Tensor) -> Spelt | None:
        from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
        from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor, unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.lifecycle.forward import dequantize

        if not _is_linear(name):
            return None
        largest = weight.float().reshape(weight.shape[0], -1, group_size).abs().amax(-1)
        parts = {"weight": weight.float()}
        if group_size == 16:
            strategy, compressor = "tensor_group", NVFP4PackedCompressor
            # As large as its type allows where the largest weight is.
            parts["weight_global_scale"] = (448 * 6 / largest.max()).reshape(1)
            scale = (largest / 6 * parts["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        else:
            strategy, compressor = "group", MXFP4PackedCompressor
            scale = torch.exp2((largest / 6).log2().ceil())
        args = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy=strategy, group_size=group_size)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        packed = compressor.compress(parts | {"weight_scale": scale}, scheme)
        # What `decompress` does, which would round to bfloat16.
        code = unpack_fp4_from_uint8(packed["weight_packed"], *weight.shape, dtype=torch.float32)
        scale = compressor._decompress_scale(packed["weight_scale"], torch.float32)
        exact = dequantize(code, scale, args=args, dtype=torch.float32, global_scale=packed.get("weight_global_scale"))
        return {end: part for end, part in packed.items() if end != "weight"}, exact

    return spell


def _float8(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest floats of 8 bits, and what they stand for; `scale` has the weight's shape or fits it."""
    code = (weight.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return code, code.float() * scale


def float_quantized(name: str, weight: torch.Tensor) -> Spelt | None:
    if not _is_linear(name):
        return None
    scale = (weight.float().abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    code, exact = _float8(weight, scale.float())
    return {"weight": code, "weight_scale": scale}, exact


def fp8_block(high: int, wide: int) -> Callable[[str, torch.Tensor], Spelt | None]:
    def spell(name: str, weight: torch.Tensor) -> Spelt | None:
        if not _is_linear(name):
            return None
        rows, cols = weight.shape
        padded = torch.zeros(-(-rows // high) * high, -(-cols // wide) * wide)
        padded[:rows, :cols] = weight.float()
        blocks = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
        scale = blocks.abs().amax((1, 3)) / 448
        code, exact = _float8(weight, scale.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:rows, :cols])
        return {"weight": code, "weight_scale_inv": scale}, exact

    return spell


def fp8_tensor(name: str, weight: torch.Tensor) -> Spelt | None:
    if not _is_linear(name):
        return None
    scale = weight.float().abs().max() / 448
    code, exact = _float8(weight, scale)
    return {"weight": code, "weight_scale": scale, "input_scale": torch.tensor(0.25)}, exact


# ModelOpt


def modelopt_nvfp4(name: str, weight: torch.Tensor) -> Spelt | None:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    if not _is_linear(name):
        return None
    code, scale, factor = NVFP4QTensor.quantize(weight.float(), 16)
    exact = code.dequantize(torch.float32, scale=scale, double_scale=factor, block_sizes={-1: 16})
    parts = {"weight": code._quantized_data, "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(0.25)}
    return parts, exact


def _modelopt_mxfp8(weight: torch.Tensor) -> Spelt:
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    code, scale = MXFP8QTensor.quantize(weight.float())
    return {"weight": code._quantized_data, "weight_scale": scale}, code.dequantize(torch.float32, scale=scale)


def modelopt_mixed(name: str, weight: torch.Tensor) -> Spelt | None:
    first = ".layers.0." in name
    if name.endswith("o_proj.weight"):
        return _modelopt_mxfp8(weight)
    if name.endswith("down_proj.weight") and first or name.endswith(("gate_proj.weight", "up_proj.weight")) and not first:
        parts, exact = fp8_block(name, weight)
        return {"weight": parts["weight"], "weight_scale": parts["weight_scale_inv"][:, None, :, None]}, exact
    if ".mlp." in name:
        return modelopt_nvfp4(name, weight)
    spelt = fp8_tensor(name, weight)
    if spelt and name.endswith("k_proj.weight"):
        spelt[0]["k_scale"] = torch.tensor(1.0)
    return spelt


# gpt-oss' experts


def mxfp4_experts(name: str, weight: torch.Tensor) -> Spelt | None:
    from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

    if weight.ndim != 3:
        return None
    # Inputs are last in the file of codes, and outputs in that of floats.
    grouped = weight.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponents = (grouped.abs().amax(-1) / 6).log2().ceil()
    values = torch.tensor(FP4_VALUES)
    codes = (grouped.unsqueeze(-1) / torch.exp2(exponents)[..., None, None] - values).abs().argmin(-1).to(torch.uint8)
    parts = {"_blocks": codes[..., ::2] | codes[..., 1::2] << 4, "_scales": (exponents + 127).to(torch.uint8)}
    return parts, convert_moe_packed_tensors(parts["_blocks"], parts["_scales"], dtype=torch.float32)


# AWQ and GPTQ


def _asymmetric(weight: torch.Tensor, bits: int, group_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [rows, cols], scales and zero points [rows, groups]; no zero point is 0, which GPTQ cannot store."""
    rows, cols = weight.shape
    # Zeros, of which the last group of a row may have some, are within any group's limits.
    grouped = torch.nn.functional.pad(weight.float(), (0, -cols % group_size)).reshape(rows, -1, group_size)
    most = 2**bits - 1
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = ((high - low) / most).to(torch.float16)
    zero = (-low / scale.float()).round().clamp(1, most)
    code = (grouped / scale.float().unsqueeze(-1) + zero.unsqueeze(-1)).round().clamp(0, most)
    return code.reshape(rows, -1)[:, :cols].int(), scale, zero.int()


def awq(name: str, weight: torch.Tensor) -> Spelt | None:
    if not _is_linear(name):
        return None
    packing = _module("utils/packing_utils", "awq")
    code, scale, zero = _asymmetric(weight, 4, 32)

    def pack(values: torch.Tensor) -> torch.Tensor:
        lanes = values.reshape(values.shape[0], -1, 8)[:, :, packing.AWQ_ORDER].long()
        return (lanes << (4 * torch.arange(8))).sum(-1).to(torch.uint32).view(torch.int32)

    parts = {"qweight": pack(code.T), "qzeros": pack(zero.T), "scales": scale.T.contiguous()}
    exact = packing.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].float(), 4, 32)
    return parts, exact.T.contiguous()


def gptq(bits: int, group_size: int, v2: bool = False, act_order: bool = False) -> Callable[[str, torch.Tensor], Spelt | None]:
    def spell(name: str, weight: torch.Tensor) -> Spelt | None:
        if not _is_linear(name):
            return None
        rows, cols = weight.shape
        quant_linear = _module("nn_modules/qlinear/qlinear_cuda", "auto_gptq").QuantLinear
        g_idx, columns = _act_order(name, cols, group_size) if act_order else (None, torch.arange(cols))
        code, scale, zero = _asymmetric(weight[:, columns], bits, group_size)
        of_columns = torch.arange(cols) // group_size
        exact = ((code - zero[:, of_columns]) * scale.float()[:, of_columns])[:, columns.argsort()]
        layer = quant_linear(bits, group_size, cols, rows, bias=False, weight_dtype=torch.float32)
        linear = torch.nn.Linear(cols, rows, bias=False)
        linear.weight.data = exact
        layer.pack(linear, scale.float(), zero.float(), g_idx)
        # What the package computes with the identity is its weight, transposed.
        dequantised = layer(torch.eye(cols)).T.contiguous()
        if not torch.equal(dequantised, linear.weight.data):
            raise RuntimeError(f"{name}: the package reads other weights than it was given")
        qzeros = layer.qzeros
        if v2:
            ones = sum(1 << shift for shift in range(0, 32, bits))
            qzeros = (qzeros.long() + ones).to(torch.uint32).view(torch.int32)
        parts = {"qweight": layer.qweight, "qzeros": qzeros, "scales": scale.T.contiguous(), "g_idx": layer.g_idx}
        return parts, dequantised

    return spell


def auto_round(name: str, weight: torch.Tensor) -> Spelt | None:
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    # One layer's down_proj is not quantised, and another's in larger groups of more bits, as its recipes have it.
    if not _is_linear(name) or name.endswith("layers.0.mlp.down_proj.weight"):
        return None
    bits, group_size = (8, 64) if name.endswith("layers.1.self_attn.o_proj.weight") else (4, 32)
    rows, cols = weight.shape
    _, scale, zero = _asymmetric(weight, bits, group_size)
    layer = QuantLinear(bits, group_size, cols, rows, bias=False)
    linear = torch.nn.Linear(cols, rows, bias=False)
    linear.weight.data = weight.float()
    layer.pack(linear, scale.float(), zero.float(), None, device="cpu")
    layer.scales = layer.scales.float()
    # As for GPTQ.
    dequantised = layer(torch.eye(cols)).T.contiguous()
    return {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales.half()}, dequantised
