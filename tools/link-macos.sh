#!/usr/bin/env bash
# Links the program for macOS on Apple silicon, from Linux, and shows what it asks of macOS: frameworks, symbols, the oldest system.
#
# No SDK is needed. The C of dependencies is compiled by zig, whose package has the headers and the list of symbols of libSystem; for the
# frameworks, tools/macos-stubs names the few symbols that may be used. A symbol that neither names is an error of the linker. What comes
# out may run on a Mac; nobody has tried. Arguments go to cargo, instead of `-p vllm-apple`.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
out=$PWD/target/macos-link
sdk=$out/sdk
mkdir -p "$sdk/usr/lib"
[ $# -gt 0 ] || set -- -p vllm-apple

rustup target add "$target"
. tools/debian-packages.sh
require_debian_packages /usr/bin/llvm-objdump-19:llvm-19

# ZIG is a zig that is there already.
if [ -z "${ZIG:-}" ]; then
    ZIG=$out/zig/ziglang/zig
    [ -x "$ZIG" ] || python3 -m pip install --quiet --disable-pip-version-check --target "$out/zig" ziglang==0.17.1
fi
cat > "$out/cc.new" <<END_OF_CC
#!/bin/sh
# zig knows the target by another name.
for argument; do
    shift
    case "\$argument" in --target=* | -mmacosx-version-min=*) ;; *) set -- "\$@" "\$argument" ;; esac
done
exec "$ZIG" cc -target aarch64-macos.11.0 "\$@"
END_OF_CC
chmod +x "$out/cc.new"
# Build scripts run again when their compiler changes.
if cmp -s "$out/cc.new" "$out/cc"; then rm "$out/cc.new"; else mv "$out/cc.new" "$out/cc"; fi

# What the linker sees of macOS. zig lists the symbols for arm64e, in two forms, and for x86-64; arm64 has the same.
zig_lib=$("$ZIG" env | sed -n 's/^ *[."]*lib_dir"* *[=:] *"\(.*\)",*$/\1/p')
sed 's/arm64e\.x1-/arm64-/g' "$zig_lib/libc/darwin/libSystem.tbd" > "$sdk/usr/lib/libSystem.tbd"
cp "$sdk/usr/lib/libSystem.tbd" "$sdk/usr/lib/libc.tbd"
cp "$sdk/usr/lib/libSystem.tbd" "$sdk/usr/lib/libm.tbd"
cp tools/macos-stubs/lib*.tbd "$sdk/usr/lib"
for framework in CoreFoundation CoreGraphics Foundation IOKit Metal; do
    mkdir -p "$sdk/System/Library/Frameworks/$framework.framework"
    cp "tools/macos-stubs/$framework.tbd" "$sdk/System/Library/Frameworks/$framework.framework/"
done

linker=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-lld
export SDKROOT=$sdk
# Without optimisation zig adds checks of its own.
export CC_aarch64_apple_darwin="$out/cc" CFLAGS_aarch64_apple_darwin=-fno-sanitize=all AR_aarch64_apple_darwin=ar
export CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=$linker
export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="-Clinker-flavor=ld64.lld -Clink-arg=--error-limit=0"
# Symbols are asked for before anything is optimised away, and without optimisation it is quicker.
cargo build --locked --target "$target" --config profile.dev.opt-level=0 --config 'profile.dev.package.vllm-apple.opt-level=0' \
    --config profile.dev.debug=false "$@"

program=target/$target/debug/vllm-apple
[ -f "$program" ] || exit 0
echo "== what is loaded, and the oldest system"
llvm-objdump-19 --macho --private-headers "$program" | awk '/^ *cmd / {command = $2}
    $1 == "name" && command ~ /DYLIB$/ || $1 == "minos" {print "  " $1, $2}'
echo "== symbols of all but libSystem"
llvm-nm-19 -m -u "$program" | sed -n 's/^ *(undefined) [a-z ]*\(_.*\) (from \(.*\))$/  \2 \1/p' | grep -v '^  libSystem ' | sort
