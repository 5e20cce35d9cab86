"""Fills a model with seeded weights that are equal bit by bit on every machine. Knows nothing of families."""

import zlib

import numpy as np
import torch


def approximate_normal(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Sum of four uniform integers, centred and scaled: close to a normal, and exact on every machine."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(seed.encode())))
    total = generator.integers(0, 2**16, size=(4, *shape), dtype=np.int64).sum(axis=0) - 2 * (2**16 - 1)
    return total / (2**16 / np.sqrt(3.0))


def _scaled(
    name: str, noise: np.ndarray, norm_mean: float, embedding_deviation: float, gate_up_deviation: float | None
) -> np.ndarray:
    """Large enough that logits are far from uniform and that attention and the router really choose."""
    if "norm" in name:
        return norm_mean + 0.25 * noise
    if name.endswith("bias"):
        return 0.5 * noise
    if "embed_tokens" in name or "lm_head" in name:
        return embedding_deviation * noise
    if name.endswith("sinks"):
        return 2.0 * noise
    if name.endswith("gate_up_proj") and gate_up_deviation:
        # Of these families inputs come before outputs.
        return gate_up_deviation / np.sqrt(noise.shape[-2]) * noise
    fan_in = noise.shape[-1]
    if name.endswith(("mlp.gate.weight", "router.weight")):
        return 3.0 / np.sqrt(fan_in) * noise
    return 1.6 / np.sqrt(fan_in) * noise


@torch.no_grad()
def fill(
    model: torch.nn.Module,
    family: str,
    norm_mean: float,
    embedding_deviation: float,
    gate_up_deviation: float | None = None,
) -> None:
    """Each parameter has its own generator, so that their order does not matter. Weights of norms lie around `norm_mean`."""
    for name, parameter in model.named_parameters():
        noise = approximate_normal(f"{family}/{name}", tuple(parameter.shape))
        values = _scaled(name, noise, norm_mean, embedding_deviation, gate_up_deviation)
        parameter.copy_(torch.from_numpy(values.astype(np.float32)))
