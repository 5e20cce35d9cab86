#!/usr/bin/env bash
# Chat templates of many models against transformers and llama.cpp: takes the templates and the cases of llama.cpp's source package, has
# transformers render them (PYTHON, an environment with tools/golden/requirements.txt, else .venv's) and runs the test that compares.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/llama-cpp.sh
source tools/llama-cpp.sh

require_llama_cpp
"${PYTHON:-.venv/bin/python}" tools/golden/llama_cpp_templates.py "$llama_cpp" "$llama_cpp/templates.json"
TEMPLATES=$PWD/$llama_cpp/templates.json exec cargo test --locked -p vllm-apple --test text -- --ignored --nocapture templates:: "$@"
