"""Real vLLM on small checkpoints, one LLM per model and settings, shared by all tests. It knows no test."""

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
DEMO = ROOT / "models/demo"

os.environ |= {
    "VLLM_PLATFORM": "apple",
    # What a developer has set for other work is not for the tests.
    "VLLM_APPLE_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # In this process: an engine starts in a second then. The server's tests have processes of their own.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}

import pytest  # noqa: E402
from vllm import LLM  # noqa: E402

_llms: dict[str, LLM] = {}


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"logits/{name}.json").read_text())


def start(model: Path, **settings) -> LLM:
    """An LLM of its own."""
    defaults = {"max_model_len": 256, "max_num_seqs": 16, "dtype": "float32", "kv_cache_memory_bytes": 64 << 20}
    return LLM(model=str(model), **defaults | settings)


@pytest.fixture(scope="session")
def llm():
    """An LLM that other tests may have used before."""

    def get(name: str = "qwen2", **settings) -> LLM:
        key = f"{name} {sorted(settings.items())}"
        if key not in _llms:
            _llms[key] = start(DEMO if name == "demo" else GOLDEN / "models" / name, **settings)
        return _llms[key]

    return get
