#!/usr/bin/env bash
# Compiles the Metal kernels of the published crate candle-metal-kernels, which others wrote for Apple's compiler, and reports how
# many pass. cargo fetches the crate; nothing of it is kept here. Not part of the tests: it needs the network.
# usage: candle-kernels.sh [version requirement]   (default: 0.11)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
requirement=${1:-0.11}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/src"
touch "$work/src/lib.rs"
cat > "$work/Cargo.toml" <<END
[package]
name = "throwaway"
version = "0.0.0"
edition = "2021"
[dependencies]
candle-metal-kernels = "$requirement"
[workspace]
END
(cd "$work" && cargo fetch --quiet)
manifest=$(cd "$work" && cargo metadata --format-version 1 |
  grep -o '"manifest_path":"[^"]*/candle-metal-kernels-[^"]*/Cargo.toml"' | head -n 1 | cut -d'"' -f4)
kernels=$(dirname "$manifest")/src/metal_src
echo "$(basename "$(dirname "$manifest")")"

cargo build --quiet --manifest-path "$here/../Cargo.toml" --bin msl-sim
program=$(cargo metadata --manifest-path "$here/../Cargo.toml" --no-deps --format-version 1 |
  grep -o '"target_directory":"[^"]*"' | cut -d'"' -f4)/debug/msl-sim

passed=0 total=0
for file in "$kernels"/*.metal; do
  total=$((total + 1))
  if output=$("$program" check --build "$file" 2>&1); then
    passed=$((passed + 1))
    echo "pass $(basename "$file")"
  else
    echo "FAIL $(basename "$file")"
    echo "$output" | grep -E 'error' | head -n 3
  fi
done
echo "$passed of $total files pass"
[ "$passed" = "$total" ]
