"""Runs the sections and prints one line of counts. Knows the sections' names and nothing of what they do."""

import argparse
import asyncio
import importlib
import os
import random
import tempfile
import time
import traceback
from pathlib import Path

from .report import Report
from .stage import Options, StartError

SECTIONS = [
    "poison",
    "malformed",
    "framing",
    "disconnects",
    "isolation",
    "tokenizer",
    "memory",
    "templates",
    "files",
    "signals",
]

ROOT = Path(__file__).parents[2]


async def run_section(name: str, options: Options, report: Report) -> None:
    """One section, with whatever goes wrong in it as a failure of it."""
    report.section = name
    began, used = time.monotonic(), sum(os.times()[:4])
    before = len(report.failures)
    try:
        await importlib.import_module(f".{name}", __package__).run(options, report)
    except StartError as error:
        report.check(False, f"the server did not start: {error}")
    except Exception:
        # A section that stops half-way has not shown what it should.
        report.check(False, f"the section stopped:\n{traceback.format_exc()}")
    failures = len(report.failures) - before
    took, used = time.monotonic() - began, sum(os.times()[:4]) - used
    print(f"{name}: {took:.1f} s ({used:.1f} s of CPU), {failures} failures", flush=True)


async def run(sections: list[str], options: Options) -> Report:
    report = Report(options.seed)
    for name in sections:
        await run_section(name, options, report)
    return report


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="attack", description="Attacks a server; exit code 1 if one has an effect.")
    binary = ROOT / "target/release/vllm-apple"
    parser.add_argument("--binary", type=Path, default=binary, help="the server's program [default: %(default)s]")
    parser.add_argument("--model", type=Path, help="a checkpoint directory [default: the bundled model]")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; repeatable [default: all]")
    parser.add_argument("--core", action="store_true", help="smaller counts: about a minute")
    parser.add_argument("--seed", type=int, help="of everything random [default: a new one]")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="attack-") as directory:
        options = Options(given.binary.resolve(), Path(directory), seed, given.core, given.model)
        report = asyncio.run(run(given.only or SECTIONS, options))
    print(report.line())
    return 1 if report.failures else 0
