#!/usr/bin/env bash
# Attacks a built server in every way that tools/attack knows; exit code 1 if one has an effect. Needs Python 3.11. Without arguments it
# takes the release binary of this repository; `tools/attack.sh --help` lists the flags.
set -euo pipefail
cd "$(dirname "$0")"
exec python3 -m attack "$@"
