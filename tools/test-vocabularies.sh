#!/usr/bin/env bash
# Tokenizers out of GGUF files against llama.cpp's own: fetches the vocabularies of its source package from PyPI, each with texts and their
# ids, into target/vocabularies, and runs the test that compares. Needs pip and 80 MB of downloads once.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
directory=$PWD/target/vocabularies
package=$directory/llama_cpp_python-$version.tar.gz
if ! [ -f "$directory/$version" ]; then
    mkdir -p "$directory"
    # pip asks a source package for its metadata, for which it takes that package's build tool, too.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$directory" \
        "llama-cpp-python==$version"
    echo "$sha256  $package" | sha256sum --check --quiet
    tar --extract --file "$package" --directory "$directory" --strip-components 4 --wildcards '*/vendor/llama.cpp/models/ggml-vocab-*'
    rm "$package"
    touch "$directory/$version"
fi
VOCABULARIES=$directory exec cargo test --locked -p vllm-apple --test text -- --ignored --nocapture vocabularies "$@"
