#!/usr/bin/env bash
# Runs gpu/apple on Linux, on an Objective-C runtime and a Metal of our own (crates/objc-sim), which check how it uses them.
#
# objc2-metal asks for a framework, which linkers of other systems do not know: this makes a copy without that line, for these tests only.
# Arguments go to cargo, instead of all of: `fmt --check`, `clippy`, `test`.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(uname -s)" != Linux ]; then
    echo "for Linux only; on a Mac: cargo test -p vllm-apple-metal --test apple"
    exit
fi
# The names under which the software device looks for one.
if [ -z "${MSL_SIM_CLANG:-}" ] && ! command -v clang++-{19,20,18,17} clang-19 clang++ > /dev/null; then
    . tools/debian-packages.sh
    require_debian_packages /usr/bin/clang-19:clang-19
fi

source=$(cargo metadata --locked --format-version 1 | python3 -c '
import json, os, sys
packages = json.load(sys.stdin)["packages"]
print(*(os.path.dirname(p["manifest_path"]) for p in packages if p["name"] == "objc2-metal"))')
copy=target/objc-sim/objc2-metal
if [ "$(cat "$copy/.made-of" 2> /dev/null)" != "$source" ]; then
    rm -rf "$copy"
    mkdir -p "$(dirname "$copy")"
    cp -r "$source" "$copy"
    chmod -R u+w "$copy"
    sed -i '/^#\[link(name = "Metal", kind = "framework")\]$/d' "$copy/src/generated/mod.rs"
    # A checksum of what it was.
    rm -f "$copy/.cargo-ok" "$copy/.cargo_vcs_info.json"
    echo "$source" > "$copy/.made-of"
fi
run() {
    local command=$1
    shift
    CARGO_TARGET_DIR="$PWD/target" cargo "$command" --manifest-path crates/objc-sim/Cargo.toml "$@"
}
if [ $# -gt 0 ]; then
    run "$@"
    exit
fi
run fmt --check
run clippy --locked --all-targets -- -D warnings
run test --locked
