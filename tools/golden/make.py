"""Makes the committed test data under tests/golden from seeds, or checks that it is still what the seeds give.

    python tools/golden/make.py [--only NAME …]   writes tests/golden
    python tools/golden/make.py --check           makes everything in a temporary directory and compares
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import transformers

import chat
import check
import checkpoint
import embedders
import logits
import tokenizer_golden
from families import FAMILIES

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"


def make(root: Path, only: list[str]) -> None:
    """Writes everything below `root`, or only what `only` names."""
    for family in FAMILIES:
        if only and family.name not in only:
            continue
        directory = root / "models" / family.name
        special_ids, size = checkpoint.make(family, directory)
        logits.make(family, directory, root / "logits", special_ids, size)
        print(f"made {family.name}", file=sys.stderr)
    for embedder in embedders.EMBEDDERS:
        if only and "embedders" not in only:
            continue
        embedders.make(embedder, root / "embedders")
        print(f"made {embedder.name}", file=sys.stderr)
    if not only or "tokenizers" in only:
        tokenizer_golden.make(root)
    if not only or "chat" in only:
        chat.make(root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="families, 'embedders', 'tokenizers' or 'chat'")
    arguments = parser.parse_args()
    # One thread: a reduction split over threads would depend on their number.
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not arguments.check:
        make(GOLDEN, arguments.only)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary), arguments.only)
        faults = check.compare(Path(temporary), GOLDEN, partial=bool(arguments.only))
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(faults)} differences" if faults else "equal", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
