"""Real vLLM on small checkpoints, one LLM per model and settings, shared by all tests. It knows no test."""

import json
import os
import shutil
import tempfile
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
import transformers  # noqa: E402
from vllm import LLM  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402

# vLLM looks at each class of model in a new process, which takes longer than all tests.
assert callable(registry._run_in_subprocess)
registry._run_in_subprocess = lambda function: function()

_llms: dict[str, LLM] = {}


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"logits/{name}.json").read_text())


def readable(checkpoint: Path) -> Path:
    """The checkpoint as the installed transformers can read it: version 4 does not know version 5's list of special tokens."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        return checkpoint
    copy = Path(tempfile.gettempdir()) / f"vllm-apple-tests-{os.getpid()}" / checkpoint.name
    if not copy.exists():
        shutil.copytree(checkpoint, copy)
        path = copy / "tokenizer_config.json"
        if path.exists():
            config = json.loads(path.read_text())
            config |= {"additional_special_tokens": config.pop("extra_special_tokens", []), "tokenizer_class": "PreTrainedTokenizerFast"}
            path.write_text(json.dumps(config))
        # Nor RoPE by kind of layer.
        path = copy / "config.json"
        config = json.loads(path.read_text())
        if "sliding_attention" in config.get("rope_parameters", {}):
            ropes = config.pop("rope_parameters")
            config["rope_theta"] = ropes["full_attention"]["rope_theta"]
            config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
            path.write_text(json.dumps(config))
    return copy


def start(model: Path, **settings) -> LLM:
    """An LLM of its own."""
    defaults = {"max_model_len": 256, "max_num_seqs": 16, "dtype": "float32", "kv_cache_memory_bytes": 64 << 20}
    return LLM(model=str(readable(model)), **defaults | settings)


@pytest.fixture(scope="session")
def llm():
    """An LLM that other tests may have used before."""

    def get(name: str = "qwen2", **settings) -> LLM:
        key = f"{name} {sorted(settings.items())}"
        if key not in _llms:
            _llms[key] = start(DEMO if name == "demo" else GOLDEN / "models" / name, **settings)
        return _llms[key]

    return get
