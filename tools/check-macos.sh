#!/usr/bin/env bash
# Type-checks the workspace for macOS on Apple silicon, from Linux: the code that only a Mac compiles, `gpu/apple` above all.
#
# On a Mac there is nothing to do: the tests themselves compile that code. Elsewhere it needs a standard library for the target, built
# from source by a matching compiler (Debian's rustc-web, cargo-web and rust-web-src), and a C compiler for dependencies with C code
# (zig's, from PyPI); what is missing is installed. Arguments go to `cargo check`, instead of `--workspace`.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(uname -s)" = Darwin ]; then
    echo "this is macOS: the tests compile everything natively"
    exit
fi

target=aarch64-apple-darwin
out=$PWD/target/macos-check
mkdir -p "$out"

. tools/debian-packages.sh
require_debian_packages /usr/bin/rustc:rustc-web /usr/bin/cargo:cargo-web /usr/lib/rustlib/src/rust/library/std/Cargo.toml:rust-web-src

zig=$out/zig-venv
if [ ! -f "$zig/.installed" ] || ! cmp -s tools/check-macos-requirements.txt "$zig/.installed"; then
    python3 -m venv --clear "$zig"
    "$zig/bin/pip" install --quiet --disable-pip-version-check -r tools/check-macos-requirements.txt
    cp tools/check-macos-requirements.txt "$zig/.installed"
fi

# Build scripts speak to a C compiler as to Apple's; zig names the target in its own way.
cc=$out/cc
cat > "$cc.new" <<END
#!/usr/bin/env bash
args=()
while [ \$# -gt 0 ]; do
    case \$1 in
        -arch) shift ;;
        -mmacosx-version-min=* | -gfull | --target=*) ;;
        *) args+=("\$1") ;;
    esac
    shift
done
exec "$zig/bin/python" -m ziglang cc -target aarch64-macos "\${args[@]}"
END
chmod +x "$cc.new"
# Build scripts run again when the compiler is newer than their output.
if cmp -s "$cc.new" "$cc"; then rm "$cc.new"; else mv "$cc.new" "$cc"; fi

# The features of a nightly compiler, for -Zbuild-std alone. rustup's proxies come first in PATH: name the binaries.
# Nothing is run: no debug information. Warnings are errors, as in the lints for Linux.
exec env -u RUSTUP_TOOLCHAIN -u CARGO_BUILD_TARGET \
    RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc RUSTFLAGS="-Dwarnings -Zno-codegen" \
    CARGO_TARGET_DIR="$out" CARGO_INCREMENTAL=0 \
    CC_aarch64_apple_darwin="$cc" CXX_aarch64_apple_darwin="$cc" \
    /usr/bin/cargo check --locked -Zbuild-std=std,panic_abort --target "$target" \
    --config profile.dev.debug=false --config profile.dev.opt-level=0 --config 'profile.dev.package."*".opt-level=0' \
    "${@:---workspace}"
