#!/usr/bin/env bash
# Type-checks and lints the workspace for macOS on Apple silicon, from Linux: the code that only a Mac compiles, `gpu/apple` above all.
#
# On a Mac there is nothing to do: the tests themselves compile that code. Elsewhere it needs the standard library for the target: from
# rustup, or, where rustup has none to give, built from the source of Debian's matching toolchain (rustc-web, cargo-web, rust-web-src,
# installed if missing). `CHECK_MACOS_WITH=debian` skips rustup. Arguments go to cargo, instead of `--workspace --all-targets`.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(uname -s)" = Darwin ]; then
    echo "this is macOS: the tests compile everything natively"
    exit
fi

target=aarch64-apple-darwin
out=$PWD/target/macos-check
mkdir -p "$out"
[ $# -gt 0 ] || set -- --workspace --all-targets

# Some dependencies contain C. Nothing is linked here, so nothing of it is compiled: this stands in for a C compiler for macOS. It answers
# questions to the preprocessor, by which build scripts find out about their compiler; it leaves empty objects; the rest it refuses.
cat > "$out/cc.new" <<'END'
#!/bin/sh
previous=
object=
for argument; do
    [ "$argument" != -E ] || exec cc "$@"
    [ "$previous" != -o ] || object=$argument
    previous=$argument
done
[ -n "$object" ] && : > "$object"
END
chmod +x "$out/cc.new"
# Build scripts run again when their compiler changes.
if cmp -s "$out/cc.new" "$out/cc"; then rm "$out/cc.new"; else mv "$out/cc.new" "$out/cc"; fi
export CC_aarch64_apple_darwin="$out/cc" CXX_aarch64_apple_darwin="$out/cc" AR_aarch64_apple_darwin=ar

if [ "${CHECK_MACOS_WITH:-rustup}" = rustup ] && rustup target add "$target"; then
    # In the usual target directory: procedural macros and build scripts are those of the tests.
    exec cargo clippy --locked --target "$target" "$@" -- -D warnings
fi

. tools/debian-packages.sh
require_debian_packages /usr/bin/rustc:rustc-web /usr/bin/cargo:cargo-web \
    /usr/lib/rustlib/src/rust/library/std/Cargo.toml:rust-web-src

# -Zbuild-std wants the features of a nightly compiler, and -Zno-codegen spares it the machine code of the standard library. rustup's
# proxies come first in PATH: the binaries are named.
exec env -u RUSTUP_TOOLCHAIN RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc RUSTFLAGS="-Dwarnings -Zno-codegen" \
    CARGO_TARGET_DIR="$out" CARGO_INCREMENTAL=0 \
    /usr/bin/cargo check --locked -Zbuild-std=std,panic_abort --target "$target" \
    --config profile.dev.debug=false --config profile.dev.opt-level=0 --config 'profile.dev.package."*".opt-level=0' "$@"
