#!/usr/bin/env bash
# Format, lints and types of python/, as python/pyproject.toml configures them. Needs Python 3.11 with pip; vLLM is not needed.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/lint-venv
tools="ruff==0.17.6 mypy==2.4.1"
if [ "$(cat "$venv/.installed" 2> /dev/null)" != "$tools" ]; then
    python3 -m venv --clear "$venv"
    # shellcheck disable=SC2086  # One word per tool.
    "$venv/bin/pip" install --quiet --disable-pip-version-check $tools
    echo "$tools" > "$venv/.installed"
fi

"$venv/bin/ruff" format --quiet --check python
"$venv/bin/ruff" check --quiet python
cd python
"../$venv/bin/mypy"
