#!/usr/bin/env bash
# Format, lints and types of python/, as python/pyproject.toml configures them. Needs Python 3.11 with pip; vLLM is not needed.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/lint-venv
. tools/venv.sh
require_venv "$venv" ruff==0.17.6 mypy==2.4.1

"$venv/bin/ruff" format --quiet --check python
"$venv/bin/ruff" check --quiet python
cd python
"../$venv/bin/mypy"
