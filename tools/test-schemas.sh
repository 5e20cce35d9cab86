#!/usr/bin/env bash
# JSON schemas of public suites against a running server: `tools/test-schemas.sh [SUITE BENCH]`, copies of json-schema-org's
# JSON-Schema-Test-Suite and guidance-ai's jsonschemabench, which are fetched from GitHub if they are not named (100 MB). Takes the program
# that the tests have built, or the one of $VLLM_APPLE_BINARY, and the bundled model. Needs what tools/test-clients.sh has made; run by hand.
set -euo pipefail
cd "$(dirname "$0")/.."

python=target/clients/frameworks/bin/python
[ -x "$python" ] || { echo "run tools/test-clients.sh first" >&2; exit 1; }
fetch() {
    [ -d "target/clients/$3" ] && return
    git init --quiet "target/clients/$3"
    git -C "target/clients/$3" fetch --quiet --depth 1 "https://github.com/$1" "$2"
    git -C "target/clients/$3" checkout --quiet FETCH_HEAD
}
if [ $# -eq 0 ]; then
    fetch json-schema-org/JSON-Schema-Test-Suite 44401e0c046704b476ec9d2e2fccdaee618f259d suite
    fetch guidance-ai/jsonschemabench ba103c73756198dd9b149ddc7db7867da7a077f6 bench
    set -- target/clients/suite target/clients/bench
fi
PYTHONPATH=tests/python exec "$python" tests/clients/schemas/check.py --suite "$1" --bench "$2"
