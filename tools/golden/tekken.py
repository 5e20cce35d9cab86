"""Makes a tiny tekken.json as mistral_common reads it. Knows nothing of the models that use it."""

import base64
import json
from pathlib import Path

from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import pre_tokenizers

from vocab import train_byte_level_bpe

# A fact of the format: the splitting regex of Mistral's own tekken files.
SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NUM_SPECIAL = 24  # more than the 20 named ones, so that fillers exist as in the real files
VOCAB_SIZE = 448
UNUSED = 8  # the file lists more tokens than default_vocab_size admits, as the real files do


def _bytes_of_characters() -> dict[str, int]:
    """The byte for each character of the byte-level alphabet: printable bytes stand for themselves."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    shifted = [b for b in range(256) if b not in plain]
    table = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(shifted)}
    assert set(table) == set(pre_tokenizers.ByteLevel.alphabet())
    return table


def _token_bytes() -> list[bytes]:
    """The 256 bytes in order, then the merged tokens in the order of their merges."""
    table = _bytes_of_characters()
    _, merges = train_byte_level_bpe(SPLIT, VOCAB_SIZE - NUM_SPECIAL + UNUSED)
    return [bytes([b]) for b in range(256)] + [bytes(table[c] for c in left + right) for left, right in merges]


def _as_text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def save(path: Path) -> dict:
    """Writes the file and returns what a checkpoint must know of it."""
    tokens = _token_bytes()
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": _as_text(token)}
        for rank, token in enumerate(tokens)
    ]
    config = {
        "pattern": SPLIT,
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": VOCAB_SIZE,
        "default_num_special_tokens": NUM_SPECIAL,
        "version": "v3",
    }
    path.write_text(json.dumps({"config": config, "vocab": vocab}, ensure_ascii=False, indent=1) + "\n")
    loaded = Tekkenizer.from_file(path)
    assert loaded.n_words == VOCAB_SIZE
    return {
        "bos": loaded.bos_id,
        "eos": [loaded.eos_id],
        "special": set(range(NUM_SPECIAL)),
        "size": loaded.n_words,
    }
