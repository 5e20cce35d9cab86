"""Compares freshly made test data with the committed one. Knows what must be equal in bytes and what cannot be."""

import json
from pathlib import Path

from safetensors.torch import load_file

# Float32 logits of order 10 differ between CPU types by a few units in the last place per reduction, as each picks
# its own SIMD width and so its own order of summation: with PyTorch's kernels held to SSE, AVX2 and AVX-512 the
# largest difference was 4e-5. The engine's contract is 1e-3 of a deviation of about 3, thirty times this.
LOGITS_TOLERANCE = 1e-4
# A 16-bit forward rounds at every step, so another order of summation gives another error of the same size.
ERROR_RATIO = 2.0


def compare(fresh: Path, committed: Path, partial: bool) -> list[str]:
    """One line per difference. With `partial`, files that were not made again are not missed."""
    made = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    kept = {path.relative_to(committed) for path in committed.rglob("*") if path.is_file()}
    faults = [f"{name}: made, but not committed" for name in sorted(made - kept)]
    if not partial:
        faults += [f"{name}: committed, but not made" for name in sorted(kept - made)]
    for name in sorted(made & kept):
        faults += _compare_file(name, fresh / name, committed / name)
    return faults


def _compare_file(name: Path, fresh: Path, committed: Path) -> list[str]:
    if fresh.read_bytes() == committed.read_bytes():
        return []
    if name.parts[0] == "logits" and name.suffix == ".safetensors":
        return _compare_logits(name, load_file(fresh), load_file(committed))
    if name.parts[0] == "logits" or name.parts[:2] == ("embedders", "vectors"):
        return _compare_numbers(str(name), json.loads(fresh.read_text()), json.loads(committed.read_text()))
    return [f"{name}: bytes differ"]


def _compare_logits(name: Path, fresh: dict, committed: dict) -> list[str]:
    if {k: v.shape for k, v in fresh.items()} != {k: v.shape for k, v in committed.items()}:
        return [f"{name}: other tensors or shapes"]
    worst = max((fresh[key] - committed[key]).abs().max().item() for key in fresh)
    return [f"{name}: logits differ by {worst}"] if worst > LOGITS_TOLERANCE else []


def _compare_numbers(where: str, fresh, committed) -> list[str]:
    """Integers and text exactly; measured errors within a ratio; other floats within the logits' tolerance."""
    if isinstance(fresh, dict) and isinstance(committed, dict) and fresh.keys() == committed.keys():
        return [f for key in fresh for f in _compare_numbers(f"{where}.{key}", fresh[key], committed[key])]
    if isinstance(fresh, list) and isinstance(committed, list) and len(fresh) == len(committed):
        pairs = enumerate(zip(fresh, committed))
        return [f for index, pair in pairs for f in _compare_numbers(f"{where}[{index}]", *pair)]
    if isinstance(fresh, float) and isinstance(committed, float):
        if "pytorch_error" in where:
            is_near = max(fresh, committed) <= ERROR_RATIO * min(fresh, committed)
        else:
            is_near = abs(fresh - committed) <= LOGITS_TOLERANCE
        return [] if is_near else [f"{where}: {fresh}, committed {committed}"]
    return [] if fresh == committed else [f"{where}: {fresh!r}, committed {committed!r}"]
