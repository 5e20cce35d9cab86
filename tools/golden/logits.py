"""Runs a saved checkpoint in PyTorch and records prompts, logits, greedy tokens and PyTorch's own errors.

Everything is computed by transformers with eager attention, teacher-forced, without a KV cache.
"""

import json
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from families import Family

GREEDY_TOKENS = 16
LAST_POSITIONS = 4  # of prompts longer than FULL_LENGTH
FULL_LENGTH = 40

# In units of the logits' standard deviation; the contract's tolerance is 1e-3 of it, so a near-tie cannot decide.
MIN_GREEDY_MARGIN = 2e-2
# In the router's own logits (whose deviation is about 3): wide enough that no 16-bit rounding picks another expert
# inside a prompt. Greedy continuations cannot be chosen, so they only keep clear of float32 rounding.
MIN_PROMPT_ROUTER_MARGIN = 0.5
MIN_GREEDY_ROUTER_MARGIN = 1e-2
CANDIDATES = 32
# Ends of the names of what chooses experts.
ROUTERS = ("mlp.gate", "mlp.router")


def load(family: Family, directory: Path, dtype: torch.dtype):
    """As a user loads it. `from_pretrained(dtype=…)` keeps the rope frequencies in float32; `.to(dtype)` would not."""
    return family.model.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def forward(model, token_ids: list[list[int]]) -> torch.Tensor:
    return model(torch.tensor(token_ids), use_cache=False).logits.float()


@contextmanager
def router_margins(model):
    """Collects, per sparse layer, the router's margin between its last chosen and first refused expert."""
    margins: list[torch.Tensor] = []

    def hook(router, inputs, _output):
        scores = inputs[0].reshape(-1, router.weight.shape[1]).float() @ router.weight.float().T
        if getattr(router, "bias", None) is not None:
            scores = scores + router.bias.float()
        ordered = scores.sort(dim=-1, descending=True).values
        k = model.config.num_experts_per_tok
        margins.append(ordered[:, k - 1] - ordered[:, k])

    handles = [m.register_forward_hook(hook) for n, m in model.named_modules() if n.endswith(ROUTERS)]
    try:
        yield margins
    finally:
        for handle in handles:
            handle.remove()


def _choose_prompt(model, generator: np.random.Generator, allowed: np.ndarray, length: int) -> list[int] | None:
    """Random tokens; for a mixture of experts the first candidate per position that is routed without doubt."""
    is_sparse = any(name.endswith(ROUTERS) for name, _ in model.named_modules())
    if not is_sparse:
        return generator.choice(allowed, size=length).tolist()
    prompt: list[int] = []
    for _ in range(length):
        candidates = generator.choice(allowed, size=CANDIDATES, replace=False).tolist()
        with router_margins(model) as margins:
            forward(model, [prompt + [token] for token in candidates])
        last = torch.stack([m.reshape(CANDIDATES, -1)[:, -1] for m in margins]).min(dim=0).values
        clear = (last >= MIN_PROMPT_ROUTER_MARGIN).nonzero().flatten().tolist()
        if not clear:
            return None
        prompt.append(candidates[clear[0]])
    return prompt


def _greedy(model, prompt: list[int]) -> tuple[list[int], list[float], float]:
    """Greedy tokens, the top-2 margin of each, and the least router margin met."""
    token_ids, gaps, least_router = list(prompt), [], float("inf")
    for _ in range(GREEDY_TOKENS):
        with router_margins(model) as margins:
            top = forward(model, [token_ids])[0, -1].topk(2)
        least_router = min([least_router, *(m.min().item() for m in margins)])
        gaps.append((top.values[0] - top.values[1]).item())
        token_ids.append(top.indices[0].item())
    return token_ids[len(prompt) :], gaps, least_router


def _stable_prompt(model, seed: str, allowed: np.ndarray, stops: set[int], length: int, deviation: float) -> dict:
    """The first seeded prompt whose continuation has no near-tie and no stop token."""
    for attempt in range(200):
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(f"{seed}/{attempt}".encode())))
        prompt = _choose_prompt(model, generator, allowed, length)
        if prompt is None:
            continue
        tokens, gaps, router = _greedy(model, prompt)
        is_clear = min(gaps) >= MIN_GREEDY_MARGIN * deviation and router >= MIN_GREEDY_ROUTER_MARGIN
        if is_clear and not stops & set(tokens):
            return {"token_ids": prompt, "greedy": tokens, "greedy_margin": gaps}
    raise RuntimeError(f"{seed}: no stable prompt of {length} tokens in 200 attempts")


def _recorded(length: int) -> tuple[int, int]:
    """First position and number of positions whose logits are kept."""
    kept = length if length <= FULL_LENGTH else LAST_POSITIONS
    return length - kept, kept


def _errors(model, prompts: list[dict], reference: dict[str, torch.Tensor]) -> dict:
    per_prompt, total, count = [], 0.0, 0
    for index, prompt in enumerate(prompts):
        first = prompt["first_position"]
        error = (forward(model, [prompt["token_ids"]])[0, first:] - reference[f"prompt.{index}"]).abs()
        per_prompt.append({"max_abs": error.max().item(), "mean_abs": error.mean().item()})
        total, count = total + error.double().sum().item(), count + error.numel()
    return {
        "max_abs": max(error["max_abs"] for error in per_prompt),
        "mean_abs": total / count,
        "per_prompt": per_prompt,
    }


def make(family: Family, checkpoint: Path, out: Path, special_ids: set[int], tokenizer_size: int) -> None:
    """Writes `<out>/<family>.safetensors` and `<out>/<family>.json` for the checkpoint in `checkpoint`."""
    model = load(family, checkpoint, torch.float32)
    limit = model.config.max_position_embeddings
    allowed = np.array([t for t in range(tokenizer_size) if t not in special_ids])
    probe = np.random.Generator(np.random.PCG64(0)).choice(allowed, size=64).tolist()
    deviation = forward(model, [probe]).std().item()

    prompts = []
    for length in family.prompt_lengths:
        assert length + GREEDY_TOKENS <= limit
        seed = f"{family.name}/prompt/{length}"
        prompt = _stable_prompt(model, seed, allowed, special_ids, length, deviation)
        prompts.append(prompt | {"max_model_len": limit})
    for length in family.beyond_lengths:
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(f"{family.name}/beyond/{length}".encode())))
        token_ids = generator.choice(allowed, size=length).tolist()
        prompts.append({"token_ids": token_ids, "greedy": [], "greedy_margin": [], "max_model_len": length})

    logits = {}
    for index, prompt in enumerate(prompts):
        first, kept = _recorded(len(prompt["token_ids"]))
        prompt |= {"first_position": first, "positions": kept}
        logits[f"prompt.{index}"] = forward(model, [prompt["token_ids"]])[0, first:].clone()
    everything = torch.cat([value.flatten() for value in logits.values()])

    record = {
        "model": family.name,
        "stored_dtype": family.stored_dtype,
        "logits_std": everything.std().item(),
        "prompts": prompts,
        "pytorch_error": {
            name: _errors(load(family, checkpoint, getattr(torch, name)), prompts, logits)
            for name in ("bfloat16", "float16")
        },
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(logits, out / f"{family.name}.safetensors")
    (out / f"{family.name}.json").write_text(compact_json(record))


def compact_json(value) -> str:
    """One key a line at the top, and one line per element of a list of objects: readable, and small to diff."""
    lines = []
    for key, entry in value.items():
        if isinstance(entry, list) and entry and isinstance(entry[0], dict):
            rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in entry)
            text = f"[\n{rows}\n  ]"
        else:
            text = json.dumps(entry, ensure_ascii=False)
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
