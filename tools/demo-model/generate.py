"""Writes the training rows: generated documents as token ids, packed into rows of 512 and of 4,096. Knows no model.

    python generate.py --tokenizer DIRECTORY --out DIRECTORY --millions 300

The rows of a seed are the same for any number of workers. A row starts with a document's first token; what a row has
left is -1.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import time
from multiprocessing import Pool
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

import documents

SHORT, LONG = 512, 4096
CHUNK = 1500
BATCH = 64


def _start(tokenizer: str) -> None:
    global TOKENIZER
    TOKENIZER = Tokenizer.from_file(tokenizer)


def pack(documents_ids: list[list[int]], length: int, fill: list[list[int]]) -> list[np.ndarray]:
    """First fit, largest first; then what is free takes documents from `fill`, which shrinks."""
    rows: list[list[int]] = []
    for ids in sorted(documents_ids, key=len, reverse=True):
        row = next((r for r in rows[-40:] if len(r) + len(ids) <= length), None)
        if row is None:
            rows.append(list(ids))
        else:
            row.extend(ids)
    packed = []
    for row in rows:
        while fill and len(row) + len(fill[-1]) <= length:
            row.extend(fill.pop())
        packed.append(np.array(row + [-1] * (length - len(row)), dtype=np.int16))
    return packed


def chunk(job: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    seed, number = job
    rng = Random(f"{seed}/{number}")
    end = TOKENIZER.token_to_id("<|endoftext|>")
    texts = [documents.document(rng) for _ in range(CHUNK)]
    ids = [e.ids[: LONG - 1] + [end] for e in TOKENIZER.encode_batch(texts)]
    short = [x for x in ids if len(x) <= SHORT]
    rng.shuffle(short)
    long_rows = pack([x for x in ids if len(x) > SHORT], LONG, short)
    # Some rows of short documents only are long ones too.
    extra = short[: len(short) // 8]
    long_rows += pack([], LONG, extra) if not extra else _sequence(extra)
    short_rows = pack(short[len(short) // 8 :], SHORT, [])
    return np.stack(short_rows), np.stack(long_rows)


def _sequence(documents_ids: list[list[int]]) -> list[np.ndarray]:
    """Rows of 4,096 from short documents in the order that they come in."""
    rows, row = [], []
    for ids in documents_ids:
        if len(row) + len(ids) > LONG:
            rows.append(row)
            row = []
        row = row + ids
    return [np.array(r + [-1] * (LONG - len(r)), dtype=np.int16) for r in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--millions", type=float, default=300, help="tokens, in millions")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    started, short, long, tokens, number = time.time(), [], [], 0, 0
    with Pool(arguments.workers, _start, (str(arguments.tokenizer / "tokenizer.json"),)) as pool:
        while tokens < arguments.millions * 1e6:
            jobs = [(arguments.seed, number + k) for k in range(BATCH)]
            number += len(jobs)
            for s, l in pool.map(chunk, jobs, chunksize=1):
                short.append(s)
                long.append(l)
                tokens += int((s >= 0).sum() + (l >= 0).sum())
    short, long = np.concatenate(short), np.concatenate(long)
    np.save(arguments.out / "short.npy", short)
    np.save(arguments.out / "long.npy", long)
    print(
        f"{tokens / 1e6:.1f} M tokens of {number * CHUNK} documents; {len(short)} rows of {SHORT}, {(short >= 0).mean():.0%} full; "
        f"{len(long)} rows of {LONG}, {(long >= 0).mean():.0%} full; {time.time() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
