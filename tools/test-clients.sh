#!/usr/bin/env bash
# Libraries of clients against the running server with the bundled model: `tools/test-clients.sh [pytest's arguments]`. What passes is in
# docs/CLIENTS.md. Takes the program that `cargo build` or the tests have built, or the one of $VLLM_APPLE_BINARY. Needs Python 3.11 with pip,
# Node 20 with npm, PyPI and npm's registry, and 1.5 GB of disk; run by hand, because it takes minutes and so much from elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

tests=tests/clients
made=target/clients
mkdir -p "$made/npm"
uv=$made/uv/bin/uv
if [ ! -x "$uv" ]; then
    python3 -m venv "$made/uv"
    "$made/uv/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9
fi
# What the pinned libraries need themselves is as it was on that day.
for name in agents frameworks; do
    if ! cmp -s "$tests/$name/requirements.txt" "$made/$name/.installed"; then
        "$uv" venv --quiet --clear --python python3 "$made/$name"
        "$uv" pip install --quiet --python "$made/$name/bin/python" --exclude-newer 2026-11-23 -r "$tests/$name/requirements.txt"
        cp "$tests/$name/requirements.txt" "$made/$name/.installed"
    fi
done
cp "$tests"/npm/*.js* "$made/npm"
if ! cmp -s "$tests/npm/package-lock.json" "$made/npm/.installed"; then
    npm --prefix "$made/npm" ci --no-audit --no-fund --loglevel=error
    cp "$tests/npm/package-lock.json" "$made/npm/.installed"
fi

# Modules that all of them share.
export PYTHONPATH=tests/python
# No library should ask elsewhere for what it could know.
export HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True
run() {
    local name=$1
    shift
    "$made/$name/bin/python" -m pytest -q -p no:cacheprovider --rootdir "$tests" "$@"
}
run agents "$@" "$tests/agents" "$tests/npm"
run frameworks "$@" "$tests/frameworks"
