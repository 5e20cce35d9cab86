"""Counts what was tried and keeps what failed, each failure with its reproduction. Knows no server."""

import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

# Longer reproductions are cut: they are built from an expression then, which is given instead.
MOST_SHOWN = 1000


@dataclass
class Failure:
    """A check that did not hold."""

    section: str
    what: str
    how: str
    times: int = 1


class Report:
    """What one run did."""

    def __init__(self, seed: int):
        self.seed = seed
        self.section = ""
        self.counts: Counter[str] = Counter()
        self.failures: list[Failure] = []

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def check(self, holds: bool, what: str, how: str = "") -> bool:
        """Notes a failure unless `holds`; `how` repeats what was sent. The same again is counted, not printed."""
        if holds:
            return True
        same = [failure for failure in self.failures if (failure.section, failure.what) == (self.section, what)]
        if same:
            same[0].times += 1
        else:
            self.failures.append(Failure(self.section, what, how))
            print(f"FAILED {self.section}: {what[:MOST_SHOWN]}", file=sys.stderr)
            if how:
                print(f"  how: {how[:MOST_SHOWN]}", file=sys.stderr)
            print(f"  seed: {self.seed}", file=sys.stderr, flush=True)
        return False

    def line(self) -> str:
        """All counts, and the failures last."""
        names = ["requests", "clients", "poisons", "bombs", "damaged files", "signals"]
        known = [f"{self.counts[name]:,} {name}" for name in names if self.counts[name]]
        return f"attacks: {', '.join(known)}; {len(self.failures)} failures"


def curl(path: str, body: Any) -> str:
    """A request with a small body as a shell command."""
    text = body if isinstance(body, str) else json.dumps(body)
    quoted = text.replace("'", "'\\''")
    return f"curl -s http://127.0.0.1:8000{path} -H 'Content-Type: application/json' -d '{quoted}'"


def snippet(path: str, expression: str) -> str:
    """A request whose body is a Python expression."""
    return (
        "python3 -c 'import json, urllib.request as u; "
        f'u.urlopen(u.Request("http://127.0.0.1:8000{path}", json.dumps({expression}).encode(), '
        '{"Content-Type": "application/json"}))\''
    )


def raw(data: bytes) -> str:
    """Bytes on a socket."""
    shown = repr(data) if len(data) < 500 else f"{data[:300]!r} … {len(data)} bytes in all … {data[-60:]!r}"
    return f"bytes to the port: {shown}"
