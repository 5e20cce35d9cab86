#!/usr/bin/env bash
# Every check of the repository: format, lints, all Rust tests, the code for macOS, the official OpenAI client against the real server, and
# the plugin under a real vLLM. Needs Rust (rustup), a C compiler and Python 3.11 with pip; everything else is fetched from crates.io and
# PyPI (8 GB, most of it vLLM), and, where it is missing and this user may install it, clang 19 from Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

# What makes the next build faster makes the first one slower, by 10 GB of files.
[ -d target/debug ] || export CARGO_INCREMENTAL=0

step() { printf '\n== %s\n' "$*"; }

# Without a clang that will do, tests fail instead of checking nothing.
export CI=1

step "clang for the software Metal device"
# The names under which the device looks for one; it says itself if that is too old.
if [ -z "${MSL_SIM_CLANG:-}" ] && ! command -v clang++-{19,20,18,17} clang-19 clang++; then
    . tools/debian-packages.sh
    require_debian_packages /usr/bin/clang-19:clang-19
fi

beside=()
trap '[ ${#beside[@]} -eq 0 ] || kill "${beside[@]}" 2> /dev/null || true' EXIT
plugin_runs() { [ "$(uname -sm)" = "Linux x86_64" ]; }
vllm=0.33.0
mkdir -p target
if plugin_runs; then
    # Minutes of downloads, beside which the compiler loses nothing.
    bash tools/vllm-environment.sh "$vllm" > target/vllm-environment.log 2>&1 &
    environment=$!
    beside+=("$environment")
fi

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings
# crates/objc-sim is a workspace of its own, whose tests take too long to run here: its lock file knows what the crates it tests need.
bash tools/test-gpu-apple.sh fetch --locked

step "Rust tests"
cargo test --workspace --locked

step "OpenAI client tests"
venv=target/test-venv
stamp=$venv/.installed
if [ ! -f "$stamp" ] || ! cmp -s tests/python/requirements.txt "$stamp"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/python/requirements.txt
    cp tests/python/requirements.txt "$stamp"
fi
# The binary is the one that the Rust tests have built.
"$venv/bin/python" -m pytest -q -n 2 --dist worksteal tests/python

step "the plugin under vLLM, beside it the code for macOS, workflows, scripts and the plugin's lints and types"
# The plugin's tests compute on one core.
{ bash tools/check-macos.sh && bash tools/lint-workflows.sh && bash tools/lint-python.sh; } > target/beside.log 2>&1 &
static=$!
beside+=("$static")
if plugin_runs; then
    wait "$environment" || { cat target/vllm-environment.log; exit 1; }
    # The program is again the one that the Rust tests have built, and the extension is of the same crates.
    WHEEL_PROFILE=dev WHEEL_PROGRAM=$PWD/target/debug/vllm-apple MATURIN_PEP517_ARGS="--features as-tested" \
        bash tools/test-vllm.sh "$vllm" -m "not slow"
else
    echo "not here: PyPI has vLLM's builds for x86-64 Linux only"
fi
wait "$static" || { cat target/beside.log; exit 1; }
