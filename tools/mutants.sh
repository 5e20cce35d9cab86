#!/usr/bin/env bash
# Plants bugs with cargo-mutants, one at a time, in the engine, the sampler and the server's text, and fails if the tests of a part let
# one pass. Bugs that no test can or need notice are in .cargo/mutants.toml, each with its reason: an entry there that no longer names
# any bug is a failure, too. It knows no fault of its own: it changes copies of the sources, never these.
#
#   tools/mutants.sh [-j JOBS] [engine|sampler|text]...     all three parts by default
#   MUTANTS_ARGS='--re Scheduler'                           more arguments for cargo-mutants: bugs whose name matches
#
# A bug costs a build of its crate and a run of the part's tests: 10 to 20 seconds of a core that has other work, for 390 bugs in the
# engine, 400 in the sampler and 680 in the text, where the whole server is built again: hours in all. A bug that makes a test hang costs
# the time limit. Each job needs a target directory of its own (3 GB). What got through is in
# target/mutants/<part>/mutants.out/missed.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=1
while getopts j: option; do
    case $option in
        j) jobs=$OPTARG ;;
        *) exit 64 ;;
    esac
done
shift $((OPTIND - 1))
parts=("$@")
[ $# -gt 0 ] || parts=(engine sampler text)

version=27.1.0
if [ "$(cargo mutants --version 2>/dev/null)" != "cargo-mutants $version" ]; then
    cargo install cargo-mutants --locked --version "$version"
fi

# The crates of a part, the files whose bugs are planted, and the tests that must notice them.
describe() {
    case $1 in
        engine)
            crates=(vllm-apple-engine) tests=(--lib --test engine)
            # The fake executor is a part of the tests.
            files=(--file 'crates/engine/src/**/*.rs' --exclude crates/engine/src/fake.rs)
            ;;
        sampler)
            crates=(vllm-apple-model vllm-apple-executor) tests=(--lib --test sampler --test device_sampling)
            files=(--file 'crates/model/src/sampler/*.rs' --file 'crates/executor/src/*.rs' --exclude crates/executor/src/fake.rs
                   --exclude crates/executor/src/batch.rs)
            ;;
        text)
            crates=(vllm-apple) tests=(--lib --test text)
            files=(--file 'crates/server/src/text/*.rs')
            ;;
        *)
            echo "$1 is no part: expected engine, sampler or text" >&2
            exit 64
            ;;
    esac
}

failed=()
names=
for part in engine sampler text; do
    describe "$part"
    names+=$(cargo mutants --list --no-config "${crates[@]/#/--package=}" "${files[@]}")$'\n'
done
while read -r known; do
    grep -qP -- "$known" <<<"$names" && continue
    echo ".cargo/mutants.toml names what is not there: $known"
    failed+=(list)
done < <(grep -oP "^ *'\K[^']+" .cargo/mutants.toml)

for part in "${parts[@]}"; do
    printf '\n== %s\n' "$part"
    describe "$part"
    # Given to cargo, not to its tests, so that nothing but these is built.
    args=()
    for test in "${tests[@]}"; do args+=(--cargo-arg="$test"); done
    out=target/mutants/$part
    mkdir -p "$out"
    code=0
    # shellcheck disable=SC2086
    cargo mutants "${crates[@]/#/--package=}" "${crates[@]/#/--test-package=}" "${files[@]}" --jobs "$jobs" --output "$out" "${args[@]}" ${MUTANTS_ARGS:-} || code=$?
    # 3: some bug made a test hang, and was noticed by that.
    [ "$code" = 0 ] || [ "$code" = 3 ] || failed+=("$part")
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
