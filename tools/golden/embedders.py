"""Tiny checkpoints that make embeddings, as sentence-transformers saves them, and the vectors that transformers computes.

Knows neither sentence-transformers itself nor its other modules: the last token or the mean of all, and then perhaps a division by the length.
"""

import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from tokenizers import processors

import vocab
import weights
from families import LLAMA2_VOCAB, QWEN_VOCAB, _base, _rope
from logits import compact_json

TEXTS = [
    "",
    "The quick brown fox",
    "Instruct: Given a question, retrieve passages\nQuery: What is the name of the town where the three rivers meet?",
    "Größe, naïve, 東京 and 🦊: not of the corpus.",
]
LENGTHS = (1, 7, 40, 130)
# A path that is no class of any installed package: only its last part is read.
CLASSES = "sentence_transformers.models"


@dataclass(frozen=True)
class Embedder:
    """A checkpoint to make. `architecture` is what its config.json says; tensors have the names of the decoder alone."""

    name: str
    config: type
    model: type
    architecture: str
    tokenizer: str
    stored_dtype: str
    overrides: dict
    pooling: dict
    normalize: bool
    # What the tokenizer puts around a text.
    template: tuple[str, ...] | None = None

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        is_mean = self.pooling.get("pooling_mode_mean_tokens") or self.pooling.get("pooling_mode") == "mean"
        return hidden.float().mean(dim=0) if is_mean else hidden[-1].float()


EMBEDDERS = [
    # Qwen3-Embedding's shape: named as a generating model, saved without its head, with an end token behind each text.
    Embedder(
        "qwen3-last",
        hf.Qwen3Config,
        hf.Qwen3Model,
        "Qwen3ForCausalLM",
        "qwen",
        "bfloat16",
        _base(QWEN_VOCAB, head_dim=32, tie_word_embeddings=True, rope_parameters=_rope("default", 1e6)),
        {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True},
        normalize=True,
        template=("$A", "<|endoftext|>"),
    ),
    Embedder(
        "llama-mean",
        hf.LlamaConfig,
        hf.LlamaModel,
        "LlamaModel",
        "llama2",
        "float32",
        _base(LLAMA2_VOCAB, rope_parameters=_rope("default"), is_matryoshka=True),
        {"embedding_dimension": 64, "pooling_mode": "mean", "include_prompt": True},
        normalize=False,
    ),
]


def make(embedder: Embedder, root: Path) -> None:
    """Writes the checkpoint and its vectors below `root`."""
    directory = root / "models" / embedder.name
    shutil.rmtree(directory, ignore_errors=True)
    tokenizer = vocab.save(embedder.tokenizer, directory)
    if embedder.template:
        _add_around(embedder.template, tokenizer, directory)
    model = embedder.model(embedder.config(**embedder.overrides, eos_token_id=tokenizer.eos_token_id))
    weights.fill(model, embedder.name, 1.0, 0.4)
    model.to(getattr(torch, embedder.stored_dtype)).save_pretrained(directory)
    _write_modules(embedder, directory)
    vectors = root / "vectors"
    vectors.mkdir(parents=True, exist_ok=True)
    (vectors / f"{embedder.name}.json").write_text(compact_json(_record(embedder, directory)))


def _add_around(template: tuple[str, ...], tokenizer, directory: Path) -> None:
    """Sets what tokenizer.json puts around a text, as in Qwen3-Embedding's."""
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in template if token != "$A"]
    backend = tokenizer.backend_tokenizer
    around = processors.TemplateProcessing(single=list(template), special_tokens=special)
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around])
    backend.save(str(directory / "tokenizer.json"))


def _write_modules(embedder: Embedder, directory: Path) -> None:
    config = directory / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"architectures": [embedder.architecture]}, indent=2) + "\n"
    )
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * embedder.normalize
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{CLASSES}.{kind}"} for i, (path, kind) in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(embedder.pooling, indent=2) + "\n")


@torch.no_grad()
def _vectors(embedder: Embedder, directory: Path, dtype: torch.dtype, prompts: list[dict]) -> torch.Tensor:
    model = embedder.model.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
    run = lambda ids: model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    return torch.stack([embedder.pool(run(prompt["token_ids"])) for prompt in prompts])


def _record(embedder: Embedder, directory: Path) -> dict:
    # As it is, without what transformers would change of it.
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    prompts = [{"text": text, "token_ids": tokenizer.encode(text)} for text in TEXTS]
    for length in LENGTHS:
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(f"{embedder.name}/{length}".encode())))
        prompts.append({"token_ids": generator.integers(0, len(tokenizer), size=length).tolist()})
    prompts = [prompt for prompt in prompts if prompt["token_ids"]]
    exact = _vectors(embedder, directory, torch.float32, prompts)
    unit = torch.nn.functional.normalize(exact, dim=-1)
    for prompt, vector, of_length_one in zip(prompts, exact, unit):
        prompt["vector"] = vector.tolist()
        prompt["embedding"] = (of_length_one if embedder.normalize else vector).tolist()
    errors = {}
    for name in ("bfloat16", "float16"):
        error = (_vectors(embedder, directory, getattr(torch, name), prompts) - exact).abs()
        errors[name] = {"max_abs": error.max().item(), "mean_abs": error.mean().item()}
    return {"model": embedder.name, "std": exact.std().item(), "pytorch_error": errors, "prompts": prompts}
