#!/usr/bin/env python3
"""Plants bugs in the engine, the sampler and the server's text, one at a time, and fails if the tests of a part let one pass.

cargo-mutants says what the bugs are. Building each of them would take hours, so all bugs of a part are built into one copy of the
sources: a function that has some gets a copy of its body for each, and an environment variable chooses among them. The few bugs for
which that does not compile, such as those of constants, are built alone; those that do not compile even then are none.

Bugs that no test can or need notice are in .cargo/mutants.toml, each with its reason; an entry there that no longer names any bug is a
failure, too. What got through is printed, and is in target/mutants/PART.missed. The sources of the repository are never touched. Runs on
Linux only: it reads the processor time of a test in /proc and limits it with prlimit.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "target/mutants"
VERSION = "27.1.0"
SWITCH = "VLLM_APPLE_MUTANT"
# Seconds of a processor that a test program may take, several times what it needs; a bug that makes it run on is noticed.
CPU_LIMIT = 120
# Seconds in which it must have used some of it: one that waits for ever does not. Not those of a clock alone, so that other load on the
# machine does not pass for a bug that was noticed.
IDLE_LIMIT = 40


@dataclass(frozen=True)
class Part:
    """Crates, the files whose bugs are planted, and the tests that must notice them."""

    crates: list[str]
    files: list[str]
    tests: list[str]
    # Names of tests that take seconds: they are run where the others notice nothing.
    slow: tuple[str, ...] = ()


PARTS = {
    "engine": Part(
        ["vllm-apple-engine"],
        # The fake executor is a part of the tests.
        ["--file=crates/engine/src/**/*.rs", "--exclude=crates/engine/src/fake.rs"],
        ["--lib", "--test=engine"],
    ),
    "sampler": Part(
        ["vllm-apple-model", "vllm-apple-executor", "vllm-apple-cpu", "vllm-apple-ops"],
        ["--file=crates/model/src/run/sampler/*.rs", "--file=crates/executor/src/*.rs", "--file=crates/ops/src/sample/*.rs"]
        + ["--file=crates/cpu/src/sample.rs", "--file=crates/cpu/src/sample/*.rs"]
        + ["--exclude=crates/executor/src/fake.rs", "--exclude=crates/executor/src/batch.rs"],
        ["--lib", "--test=sampling"],
    ),
    "text": Part(
        ["vllm-apple"], ["--file=crates/server/src/text/*.rs"], ["--lib", "--test=text"], ("limits::", "damage::", "length::", "cli::")
    ),
}


def cargo_mutants(part: Part, *arguments: str) -> str:
    """The output of cargo-mutants for a part."""
    crates = [f"--package={crate}" for crate in part.crates]
    command = ["cargo", "mutants", *crates, *part.files, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


@dataclass
class Bug:
    """One bug; `number` switches it on."""

    number: int
    name: str
    file: str
    genre: str
    replacement: str
    span: tuple[int, int]
    # Where the function begins and ends that has the bug; None for a constant.
    function: tuple[int, int] | None

    @classmethod
    def read(cls, number: int, listed: dict, texts: dict[str, str]) -> "Bug":
        text = texts[listed["file"]]
        function = listed["function"]
        return cls(
            number,
            listed["name"],
            listed["file"],
            listed["genre"],
            listed["replacement"],
            offsets(text, listed["span"]),
            offsets(text, function["span"]) if function else None,
        )


def offsets(text: str, span: dict) -> tuple[int, int]:
    """Where a span of lines and columns begins and ends, in characters."""
    lines = text.splitlines(keepends=True)

    def at(place: dict) -> int:
        return sum(len(line) for line in lines[: place["line"] - 1]) + place["column"] - 1

    return at(span["start"]), at(span["end"])


def body_of(text: str, function: tuple[int, int]) -> tuple[int, int] | None:
    """The inside of a function's body: its last pair of braces. None for a `const fn`, which cannot choose."""
    begin, end = function
    head = text[begin:end]
    if re.match(r"(#\[[^\]]*\]\s*|//[^\n]*\s*)*(pub(\([^)]*\))?\s+)?const\s+fn", head):
        return None
    depth = 0
    for at in blanked(text, begin, end):
        character = text[at]
        if character == "}":
            depth += 1
        elif character == "{":
            depth -= 1
            if depth == 0:
                return at + 1, end - 1
    return None


def blanked(text: str, begin: int, end: int) -> list[int]:
    """Places of braces, last first, that are neither in strings, characters nor comments."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\(?:u\{[^}]*\}|x..|.)|[^\'\\])\'|[{}]', re.S
    )
    return [found.start() for found in pattern.finditer(text, begin, end) if found[0] in "{}"][::-1]


def plant(text: str, bugs: list[Bug]) -> tuple[str, list[tuple[int, int, int]], list[Bug]]:
    """A file with all bugs; lines from, to and the number of each; bugs that must be built alone."""
    bodies: dict[tuple[int, int], list[Bug]] = defaultdict(list)
    alone = []
    for bug in bugs:
        body = body_of(text, bug.function) if bug.function else None
        if body and body[0] <= bug.span[0] and bug.span[1] <= body[1]:
            bodies[body].append(bug)
        else:
            alone.append(bug)
    out, where, done = "", [], 0
    # A function within a function that has bugs, too, is a part of it: the outer one's copies hold it unchanged.
    outer = [body for body in bodies if not any(o[0] < body[0] and body[1] < o[1] for o in bodies)]
    for body in sorted(outer):
        inner = [bug for at, some in bodies.items() if body[0] <= at[0] and at[1] <= body[1] for bug in some]
        original = text[body[0] : body[1]]
        out += text[done : body[0]]
        out += "\nmatch crate::planted_mutant() {\n"
        # First, so that its types are the ones that the others must have.
        out += "0 => {" + original + "}\n"
        for bug in inner:
            first = out.count("\n") + 1
            changed = text[body[0] : bug.span[0]] + " " + bug.replacement + " " + text[bug.span[1] : body[1]]
            out += f"{bug.number} => {{{changed}}}\n"
            where.append((first, out.count("\n"), bug.number))
        out += "_ => {" + original + "}\n}\n"
        done = body[1]
    return out + text[done:], where, alone


SWITCH_CODE = f"""
#[doc(hidden)]
pub fn planted_mutant() -> u32 {{
    static NUMBER: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *NUMBER.get_or_init(|| std::env::var("{SWITCH}").map_or(0, |number| number.parse().unwrap()))
}}
"""


class Tree:
    """A copy of the repository in which bugs are planted."""

    def __init__(self, name: str, part: Part):
        self.part = part
        self.path = WORK / name
        tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
        shutil.rmtree(self.path, ignore_errors=True)
        for name in tracked.stdout.splitlines():
            if (ROOT / name).is_file():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                # With its time, so that cargo builds again only what has changed.
                shutil.copy2(ROOT / name, self.path / name)

    def plant(self, bugs: list[Bug], texts: dict[str, str]) -> tuple[dict[str, list[tuple[int, int, int]]], list[Bug]]:
        """Plants bugs; where they are, and those that must be built alone."""
        places, alone = {}, []
        for file, text in texts.items():
            planted, places[file], rest = plant(text, [bug for bug in bugs if bug.file == file])
            alone += rest
            # A function that is always inlined would bring the copies of all that it calls, each with its own, to each place.
            (self.path / file).write_text(planted.replace("#[inline(always)]", ""))
        for library in {Path(file).parts[1] for file in texts}:
            path = self.path / "crates" / library / "src/lib.rs"
            text = (ROOT / path.relative_to(self.path)).read_text()
            path.write_text(text + SWITCH_CODE)
        return places, alone

    def compiles(self) -> bool:
        """Whether the libraries do: a test's time would be lost on those that do not."""
        crates = [f"--package={crate}" for crate in self.part.crates]
        command = ["cargo", "check", "--locked", "--lib", *crates]
        return subprocess.run(command, cwd=self.path, env=self._environment(), capture_output=True, check=False).returncode == 0

    def _environment(self) -> dict[str, str]:
        env = {**os.environ, "CARGO_TARGET_DIR": str(WORK / "target"), "RUSTFLAGS": "-Awarnings"}
        return env | {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_TEST_DEBUG": "0"}

    def build(self) -> tuple[list[tuple[Path, Path]], list[tuple[str, int]]]:
        """Builds the tests: programs with the directories that they run in; files and lines of errors."""
        crates = [f"--package={crate}" for crate in self.part.crates]
        command = ["cargo", "test", "--locked", "--no-run", "--message-format=json", *crates, *self.part.tests]
        built = subprocess.run(command, cwd=self.path, env=self._environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        programs, errors = [], []
        for line in built.stdout.splitlines():
            message = json.loads(line)
            if message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
                programs.append((Path(message["executable"]), Path(message["manifest_path"]).parent))
            if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
                spans = message["message"]["spans"]
                errors += [(span["file_name"], span["line_start"]) for span in spans if span["is_primary"]]
        if built.returncode and not errors:
            sys.exit(built.stderr)
        return programs, errors if built.returncode else []


def build(tree: Tree, bugs: list[Bug], texts: dict[str, str]) -> tuple[list[tuple[Path, Path]], list[Bug], list[Bug]]:
    """The tests' programs, the bugs in them, and those that must be built alone."""
    alone: list[Bug] = []
    while True:
        places, rest = tree.plant(bugs, texts)
        alone += rest
        bugs = [bug for bug in bugs if bug not in rest]
        programs, errors = tree.build()
        if not errors:
            return programs, bugs, alone
        wrong = set()
        for file, line in errors:
            # An error at a bug is the bug's; one elsewhere in a file is of whatever surrounds it.
            wrong |= {number for first, last, number in places.get(file, []) if first <= line <= last}
        if not wrong:
            sys.exit(f"the bugs cannot be built together: {errors[:5]}")
        print(f"  {len(wrong)} do not compile among the others", flush=True)
        alone += [bug for bug in bugs if bug.number in wrong]
        bugs = [bug for bug in bugs if bug.number not in wrong]


def caught(part: Part, programs: list[tuple[Path, Path]], bug: Bug) -> bool:
    """Whether a test fails with a bug. Those beside it are tried first, because most bugs are noticed there, and soon."""
    file = Path(bug.file)
    module = "::".join(Path(*file.parts[3:]).with_suffix("").parts)
    quick = [f"--skip={test}" for test in part.slow]
    return not all(passes(programs, bug.number, *tests) for tests in ([module], quick, []))


def passes(programs: list[tuple[Path, Path]], number: int, *tests: str) -> bool:
    """Whether all tests, or those that the arguments choose, pass with a bug."""
    for program, directory in programs:
        env = {**os.environ, SWITCH: str(number), "RUST_BACKTRACE": "0"}
        command = ["prlimit", f"--cpu={CPU_LIMIT}", program, *tests]
        with tempfile.TemporaryFile() as told:
            process = subprocess.Popen(
                command, cwd=directory, env=env, stdout=told, stderr=subprocess.DEVNULL, start_new_session=True
            )
            passed = ends(process, told.fileno()) == 0
        if not passed:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass
            process.wait()
            return False
    return True


def ends(process: subprocess.Popen, told: int) -> int | None:
    """How a test program ends that writes to the file `told`; None as soon as a test has failed, and if it waits for ever."""
    used, since = -1, time.monotonic()
    while time.monotonic() - since < IDLE_LIMIT:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            if b"... FAILED" in os.pread(told, 1 << 20, 0):
                return None
            # Behind the name, which may hold spaces, the fields from the third on: 14 and 15 are clock ticks.
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            now = int(fields[11]) + int(fields[12])
            if now != used:
                used, since = now, time.monotonic()
    return None


def alone_passes(tree: Tree, bug: Bug, texts: dict[str, str]) -> bool:
    """Whether all tests pass with a bug that is built alone. One that does not compile is none."""
    text = texts[bug.file]
    path = tree.path / bug.file
    path.write_text(text[: bug.span[0]] + " " + bug.replacement + " " + text[bug.span[1] :])
    missed = tree.compiles() and passes(tree.build()[0], 0)
    path.write_text(text)
    return missed


def told(results: Iterable[tuple[Bug, bool]], count: int) -> Iterator[tuple[Bug, bool]]:
    """The same results, told as they come."""
    for done, (bug, found) in enumerate(results, start=1):
        if not found:
            print(f"  MISSED {bug.name}", flush=True)
        if done % 50 == 0 or done == count:
            print(f"  {done} of {count} tried", flush=True)
        yield bug, found


def run(name: str, jobs: int, chosen: list[str]) -> list[str]:
    """Names of a part's bugs that got through, of those that cargo-mutants' arguments choose."""
    part = PARTS[name]
    listed = json.loads(cargo_mutants(part, "--list", "--json", *chosen))
    texts = {file: (ROOT / file).read_text() for file in {bug["file"] for bug in listed}}
    bugs = [Bug.read(number, bug, texts) for number, bug in enumerate(listed, start=1)]
    print(f"{name}: {len(bugs)} bugs", flush=True)
    tree = Tree(name, part)
    programs, together, alone = build(tree, bugs, texts)
    if not passes(programs, 0):
        sys.exit(f"{name}: the tests fail without any bug")
    print(f"  {len(together)} built together in {len(programs)} programs, {len(alone)} left to be built alone", flush=True)
    missed = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = zip(together, pool.map(lambda bug: caught(part, programs, bug), together), strict=True)
        missed += [bug.name for bug, found in told(results, len(together)) if not found]
    tree.plant([], texts)
    results = ((bug, not alone_passes(tree, bug, texts)) for bug in alone)
    missed += [bug.name for bug, found in told(results, len(alone)) if not found]
    (WORK / f"{name}.missed").write_text("".join(f"{line}\n" for line in missed))
    print(f"{name}: {len(missed)} of {len(bugs)} got through", flush=True)
    return missed


def stale_entries() -> list[str]:
    """Entries of the list that name no bug."""
    names = "\n".join(cargo_mutants(part, "--list", "--no-config") for part in PARTS.values())
    known = re.findall(r"^ *'([^']+)'", (ROOT / ".cargo/mutants.toml").read_text(), re.M)
    return [entry for entry in known if not re.search(entry, names, re.M)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)} [default: all]")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="bugs tried at once [default: %(default)s]")
    parser.add_argument("--re", default="", help="only bugs whose name matches this")
    parser.add_argument("--shard", help="only one of N equal shares of the bugs, as K/N with K from 0")
    given = parser.parse_args()
    if unknown := set(given.part) - set(PARTS):
        parser.error(f"{', '.join(unknown)} is no part: expected {', '.join(PARTS)}")
    version = subprocess.run(["cargo", "mutants", "--version"], capture_output=True, text=True, check=False).stdout
    if version.strip() != f"cargo-mutants {VERSION}":
        subprocess.run(["cargo", "install", "cargo-mutants", "--locked", "--version", VERSION], check=True)
    stale = stale_entries()
    for entry in stale:
        print(f".cargo/mutants.toml names what is not there: {entry}")
    chosen = [f"--re={given.re}"] * bool(given.re) + [f"--shard={given.shard}"] * bool(given.shard)
    missed = [name for part in given.part or PARTS for name in run(part, given.jobs, chosen)]
    return 1 if missed or stale else 0


if __name__ == "__main__":
    sys.exit(main())
