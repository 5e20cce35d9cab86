"""Runs this engine, llama.cpp and vLLM in turn on the CPU and prints medians of tokens per second and ratios: see peers.sh."""

import argparse
import datetime
import itertools
import json
import os
import re
import statistics
import subprocess

OURS = "vllm-apple"
MODEL = "tools/bench/qwen2-0.5b"
# Decode: requests of 128 tokens in and 32 out. Prefill: requests of 512 tokens.
BATCHES, PROMPT, OUTPUT = (1, 8, 16), 128, 32
PREFILLS, LONG_PROMPT = (1, 8), 512
COLUMNS = [f"decode {n}" for n in BATCHES] + [f"prefill {n} x {LONG_PROMPT}" for n in PREFILLS]


def output(command, **variables):
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def ours(arguments, activations):
    def bench(batches, prompt, generated):
        command = ["target/release/vllm-apple", "bench", MODEL, "--load-format", "dummy", "--device", "cpu", "--json", "--repeat", "1"]
        command += ["--threads", str(arguments.threads), "--batch", ",".join(map(str, batches))]
        # As many as llama.cpp takes. Where products are slow, the default is so few that the first request is done before the last begins.
        command += ["--max-num-batched-tokens", "2048"]
        if arguments.isa:
            command += ["--isa", arguments.isa]
        if arguments.weights != "bf16":
            command += ["--quantization", arguments.weights, "--activation-dtype", activations]
        return json.loads(output([*command, "--input-len", str(prompt), "--output-len", str(generated)]))

    decode = bench(BATCHES, PROMPT, OUTPUT + 1)
    # Enough tokens that all requests decode together at the end, or there is no step to be timed.
    prefill = bench(PREFILLS, LONG_PROMPT, 8)
    speeds = [result["decode_tokens_per_s"] for result in decode["results"]]
    speeds += [result["prefill_tokens_per_s"] for result in prefill["results"]]
    limits = [(result["read_bandwidth_gb_per_s"], result["peak_gflop_per_s"]) for result in decode["results"]]
    return speeds, (decode["facts"]["processor"], decode["device"], *map(max, zip(*limits, strict=True)))


def llama(arguments):
    def bench(batches, prompt, generated, column):
        command = [arguments.llama, "--model", arguments.gguf, "--output-format", "jsonl", "--threads", str(arguments.threads)]
        command += ["-c", "8192", "-b", "2048", "-ub", "512", "-npp", str(prompt), "-ntg", str(generated)]
        text = output([*command, "-npl", ",".join(map(str, batches))])
        return [json.loads(line)[column] for line in text.splitlines() if line.startswith("{")]

    return bench(BATCHES, PROMPT, OUTPUT, "speed_tg") + bench(PREFILLS, LONG_PROMPT, 1, "speed_pp")


def vllm(arguments):
    cores = f"0-{arguments.threads - 1}"
    settings = {"VLLM_PLATFORM": "cpu", "VLLM_PLUGINS": "none", "VLLM_CPU_OMP_THREADS_BIND": cores}
    text = output([arguments.vllm, "python/benchmarks/throughput.py"], **settings)
    return [float(speed) for speed in re.findall(r"^cpu: .* ([\d.]+) tokens/s$", text, re.MULTILINE)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--isa")
    parser.add_argument("--vllm")
    arguments = parser.parse_args()

    ways = {OURS: "auto"} | ({} if arguments.weights == "bf16" else {f"{OURS}, activations int8": "int8"})
    peers = ["llama.cpp"] + (["vLLM"] if arguments.vllm else [])
    rounds = {name: [] for name in [*ways, *peers]}
    for _ in range(arguments.rounds):
        for name, activations in ways.items():
            speeds, machine = ours(arguments, activations)
            rounds[name].append(speeds)
        rounds["llama.cpp"].append(llama(arguments))
        if arguments.vllm:
            rounds["vLLM"].append(vllm(arguments))

    processor, device, read, peak = machine
    print(f"{processor}, {device}, {datetime.datetime.now(datetime.UTC).date()}: read {read:.1f} GB/s, peak {peak:.0f} GFLOP/s")
    print(f"{arguments.weights}, tokens/s, medians of {arguments.rounds} rounds\n")
    print("| |", " | ".join(COLUMNS), "|")
    print("|---|" + "---:|" * len(COLUMNS))
    medians = {}
    for name, runs in rounds.items():
        medians[name] = [statistics.median(column) for column in zip(*runs, strict=True)]
        print(f"| {name} |", " | ".join(f"{speed:.1f}" for speed in medians[name]), "|")
    for ours_is, theirs_is in itertools.product(ways, peers):
        # Of the rounds' ratios, as a machine's speed moves from minute to minute.
        pairs = zip(rounds[ours_is], rounds[theirs_is], strict=True)
        ratios = [[ours / theirs for ours, theirs in zip(*pair, strict=True)] for pair in pairs]
        columns = [statistics.median(column) for column in zip(*ratios, strict=True)]
        print(f"| {ours_is}, times {theirs_is} |", " | ".join(f"{ratio:.2f}" for ratio in columns), "|")


if __name__ == "__main__":
    main()
