"""What a step costs beside the executor: the whole of vLLM's step, and the plugin's part of it. Tiny model, so that little else is left."""

import os
import statistics
import sys
import time
from pathlib import Path

os.environ |= {"VLLM_PLATFORM": "apple", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}

STEPS = 200
MODEL = Path(__file__).resolve().parents[2] / "tests/golden/models/qwen2"


def measure(llm, worker, batch, grammar=False):
    """Medians of milliseconds per step: all, the plugin, the executor."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    from vllm.sampling_params import StructuredOutputsParams

    # As long as the answers without one.
    obeyed = StructuredOutputsParams(regex=f"[a-z]{{{10 * STEPS}}}") if grammar else None
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=STEPS, detokenize=False, structured_outputs=obeyed)
    for i in range(batch):
        engine.add_request(f"{time.monotonic_ns()}-{i}", {"prompt_token_ids": [5 + i, 6, 7]}, params)
    inside = 0.0
    original = worker.execute_model, worker.sample_tokens

    def timed(function):
        def call(*args):
            nonlocal inside
            start = time.perf_counter()
            result = function(*args)
            inside += time.perf_counter() - start
            return result

        return call

    worker.execute_model, worker.sample_tokens = map(timed, original)
    rows = []
    while engine.has_unfinished_requests():
        inside, computed, start = 0.0, worker.engine.executor_seconds, time.perf_counter()
        engine.step()
        whole = time.perf_counter() - start
        computed = worker.engine.executor_seconds - computed
        # Not while vLLM compiles the grammar.
        if computed:
            rows.append((whole - computed, inside - computed, computed))
    worker.execute_model, worker.sample_tokens = original
    rows = rows[10:-10]
    return [1000 * statistics.median(column) for column in zip(*rows, strict=True)]


def main():
    from vllm import LLM

    llm = LLM(model=str(MODEL), dtype="bfloat16", max_model_len=256, max_num_seqs=64, kv_cache_memory_bytes=64 << 20)
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    measure(llm, worker, 1)
    for batch in map(int, sys.argv[1:] or ("1", "16")):
        for grammar in (False, True):
            whole, plugin, executor = measure(llm, worker, batch, grammar)
            kind = "with a grammar" if grammar else "free"
            print(f"batch {batch}, {kind}: {whole:.3f} ms a step beside the executor ({executor:.3f} ms), {plugin:.3f} ms the plugin's")


if __name__ == "__main__":
    main()
