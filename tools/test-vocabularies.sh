#!/usr/bin/env bash
# Tokenizers out of GGUF files against llama.cpp's own: takes the vocabularies of its source package, each with texts and their ids, and runs
# the test that compares.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/llama-cpp.sh
source tools/llama-cpp.sh

require_llama_cpp
VOCABULARIES=$PWD/$llama_cpp/models exec cargo test --locked -p vllm-apple --test text -- --ignored --nocapture vocabularies "$@"
