#!/usr/bin/env bash
# Looks through a release build for vector code that the CPU backend's kernels call, and fails if there is any: closures of arrays, intrinsics and
# functions of instruction sets. What is not inlined into a kernel is compiled for the oldest machine and takes its vectors through memory. Only a
# linked program tells, as most of inlining happens when it is linked.
#
#     cargo build --release && bash tools/kernel-calls.sh [target/release/vllm-apple]
#
# OBJDUMP names a disassembler for other machines' programs.
set -euo pipefail
cd "$(dirname "$0")/.."

# A kernel is a function `run` of the module of an instruction set; its code lasts until the next symbol's.
"${OBJDUMP:-objdump}" -d --no-show-raw-insn "${1:-target/release/vllm-apple}" | awk '
    /^[0-9a-f]+ <.*>:$/ {
        kernel = /simd[0-9]+(avx2|avx512|neon)[0-9]+run/
        kernels += kernel
        next
    }
    # Calls, and jumps to the beginning of something else.
    kernel && /\t(bl?|callq?|jmpq?)[ \t][^+]*$/ && /5array|8for_each|call_mut|core_arch|vllm_apple_cpu[0-9]+simd/ {
        sub(/.*</, "")
        sub(/>.*/, "")
        calls[$0]++
    }
    END {
        if (!kernels) {
            print "no kernels were found"
            exit 1
        }
        for (call in calls) {
            print calls[call], call
            found = 1
        }
        if (found) exit 1
        print kernels " kernels call no vector code"
    }'
