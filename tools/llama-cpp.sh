# For scripts to source, in the repository's root: llama.cpp's source package, as llama-cpp-python brings it.
# shellcheck shell=bash

llama_cpp=target/llama.cpp

# Fetches from PyPI what tests compare with into $llama_cpp: vocabularies with texts and their ids, chat templates, and cases of these. Needs
# pip and 80 MB of downloads once.
require_llama_cpp() {
    local version=0.3.36 sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
    local package=$llama_cpp/llama_cpp_python-$version.tar.gz
    [ ! -f "$llama_cpp/$version" ] || return 0
    mkdir -p "$llama_cpp"
    # pip asks a source package for its metadata, for which it takes that package's build tool, too.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$llama_cpp" \
        "llama-cpp-python==$version"
    echo "$sha256  $package" | sha256sum --check --quiet
    tar --extract --file "$package" --directory "$llama_cpp" --strip-components 3 --wildcards \
        '*/vendor/llama.cpp/models/ggml-vocab-*' '*/vendor/llama.cpp/models/templates/*.jinja' \
        '*/vendor/llama.cpp/tests/test-chat-template.cpp'
    rm "$package"
    touch "$llama_cpp/$version"
}
