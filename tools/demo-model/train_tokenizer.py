"""Learns the byte-level BPE vocabulary from generated text and saves it as transformers does. Knows no model.

python train_tokenizer.py --out DIRECTORY
"""

import argparse
import json
from pathlib import Path
from random import Random

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import Qwen2Tokenizer

import documents
from template import TEMPLATE

ENTRIES = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen2's split: digits one by one, letters with the space or mark before them.
SPLIT = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def learn(texts) -> tuple[dict, list]:
    """Vocabulary and merges; the special tokens come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]]


def save(vocab: dict, merges: list, out: Path) -> Qwen2Tokenizer:
    if len(vocab) != ENTRIES - len(SPECIAL):
        raise SystemExit(f"the text gave {len(vocab)} entries, {ENTRIES - len(SPECIAL)} are wanted: raise --documents")
    for n, token in enumerate(SPECIAL):
        vocab[token] = ENTRIES - len(SPECIAL) + n
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        unk_token=None,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        model_max_length=4096,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = Random(arguments.seed)
    texts = (
        part
        for _ in range(arguments.documents)
        for part in documents.document(rng)[:6000].replace("<|im_start|>", "\0").replace("<|im_end|>", "\0").split("\0")
    )
    tokenizer = save(*learn(texts), arguments.out)
    sample = "Once upon a time there was a little fox. <|im_end|>\n 12 + 30 = 42.\ndef add(a, b):\n    return a + b"
    assert tokenizer.decode(tokenizer(sample)["input_ids"]) == sample
    print(len(tokenizer), "entries;", len(sample), "characters as", len(tokenizer(sample)["input_ids"]), "tokens")


if __name__ == "__main__":
    main()
