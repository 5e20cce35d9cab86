"""Writes a checkpoint directory as transformers saves it, or its config.json in the spelling of older versions."""

import json
import shutil
from pathlib import Path

import torch
import transformers

import tekken
import vocab
import weights
from families import Family


def make(family: Family, directory: Path) -> tuple[set[int], int]:
    """Writes model and tokenizer. Returns the ids that prompts must avoid, and the number of the tokenizer's tokens."""
    shutil.rmtree(directory, ignore_errors=True)
    ids = _save_tokenizer(family, directory)
    _save_model(family, directory, ids)
    if family.old_spelling:
        _rewrite_config(family, directory)
    return ids["special"], ids["size"]


def _save_tokenizer(family: Family, directory: Path) -> dict:
    if family.tokenizer == "tekken":
        directory.mkdir(parents=True)
        return tekken.save(directory / "tekken.json")
    tokenizer = vocab.save(family.tokenizer, directory)
    eos = [tokenizer.eos_token_id]
    if family.tokenizer == "qwen":
        eos.append(tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    if family.tokenizer == "llama3":
        eos.insert(0, tokenizer.convert_tokens_to_ids("<|end_of_text|>"))
    special = set(tokenizer.added_tokens_decoder)
    return {"bos": tokenizer.bos_token_id, "eos": eos, "special": special, "size": len(tokenizer)}


def _save_model(family: Family, directory: Path, ids: dict) -> None:
    """config.json names one end token, generation_config.json all of them, as in released checkpoints."""
    config = family.config(**family.overrides, bos_token_id=ids["bos"], eos_token_id=ids["eos"][0])
    model = family.model(config)
    weights.fill(model, family.name, family.norm_mean, family.embedding_deviation, family.gate_up_deviation)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=ids["bos"], eos_token_id=ids["eos"] if len(ids["eos"]) > 1 else ids["eos"][0]
    )
    model.to(getattr(torch, family.stored_dtype)).save_pretrained(directory, max_shard_size=family.max_shard_size)


def _old_rope(rope: dict) -> dict:
    """`rope_parameters` as `rope_theta` and `rope_scaling`; the first kinds of scaling said `type`, before layers had their own."""
    by_layer_type = "full_attention" in rope
    local = {"rope_local_base_freq": rope["sliding_attention"]["rope_theta"]} if by_layer_type else {}
    rope = rope["full_attention"] if by_layer_type else rope
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    kind = scaling.pop("rope_type")
    named = {"rope_type" if by_layer_type or kind == "llama3" else "type": kind, **scaling}
    return {"rope_theta": rope["rope_theta"], "rope_scaling": None if kind == "default" else named} | local


def _rewrite_config(family: Family, directory: Path) -> None:
    """Rewrites config.json as transformers 4.4x wrote it and proves that the model reads it to the same logits."""
    token_ids = torch.arange(90).reshape(1, 90)
    path = directory / "config.json"

    @torch.no_grad()
    def run() -> torch.Tensor:
        return family.model.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")(token_ids).logits

    before = run()
    new = json.loads(path.read_text())
    later = ("rope_parameters", "dtype", "layer_types", "_sliding_window_pattern")
    old = {key: value for key, value in new.items() if key not in later}
    old |= _old_rope(new["rope_parameters"]) | {"torch_dtype": new["dtype"], "transformers_version": "4.46.0"}
    old |= family.old_keys
    path.write_text(json.dumps(old, indent=2, sort_keys=True) + "\n")
    if not torch.equal(before, run()):
        raise RuntimeError(f"{family.name}: config.json in the old spelling gives other logits")
