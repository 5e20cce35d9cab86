#!/usr/bin/env bash
# The plugin under a real vLLM: `tools/test-vllm.sh [VERSION [pytest's arguments]]`. Builds the wheel, installs it into an environment that
# has that vLLM and nothing of this repository, and runs python/tests there; `-m "not slow"` leaves out what takes long. VERSION is one of
# those with python/tests/overrides-*.txt, by default the newest. WHEEL_PROFILE=dev builds it as tests are
# built, and WHEEL_PROGRAM names a program that is built already. Needs Rust besides what tools/vllm-environment.sh needs.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-0.33.0}
[ $# -eq 0 ] || shift
bash tools/vllm-environment.sh "$version"
venv=target/vllm-$version

rm -rf target/plugin-wheel
settings=(--config-setting "profile=${WHEEL_PROFILE:-release}" --config-setting "program=${WHEEL_PROGRAM:-}")
"$venv/bin/uv" build --quiet --wheel "${settings[@]}" --out-dir target/plugin-wheel python
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --reinstall --no-deps target/plugin-wheel/vllm_apple-*.whl

# vLLM's cache holds what it has found out about classes of models, which takes it long.
export VLLM_CACHE_ROOT=$PWD/$venv/cache
export WHEEL_UNDER_TEST
WHEEL_UNDER_TEST=$(ls "$PWD"/target/plugin-wheel/vllm_apple-*.whl)
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider -c python/pyproject.toml --rootdir python "$@" python/tests
