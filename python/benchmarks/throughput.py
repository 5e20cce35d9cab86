"""Tokens per second of a model of Qwen2-0.5B's shape with random weights, by VLLM_PLATFORM: `apple` is this engine, `cpu` vLLM's own.

VLLM_PLATFORM=apple python throughput.py; VLLM_PLATFORM=cpu python throughput.py
"""

import json
import os
import random
import tempfile
import time
from pathlib import Path

os.environ.setdefault("VLLM_PLATFORM", "apple")
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}
PROMPT, OUTPUT, LONG_PROMPT, REPEATS = 128, 32, 512, 3


def main():
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(CONFIG))
        llm = LLM(
            model=directory,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=4096,
            max_num_seqs=16,
            max_num_batched_tokens=2048,
            enable_prefix_caching=False,
            kv_cache_memory_bytes=1 << 30,
        )
    rng = random.Random(0)

    def seconds(requests, prompt, output):
        prompts = [{"prompt_token_ids": [rng.randrange(1000, 100_000) for _ in range(prompt)]} for _ in range(requests)]
        params = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            times.append(time.perf_counter() - start)
        return min(times)

    seconds(1, 16, 4)
    for requests in (1, 8, 16):
        first = seconds(requests, PROMPT, 1)
        rest = seconds(requests, PROMPT, OUTPUT + 1) - first
        print(f"{os.environ['VLLM_PLATFORM']}: {requests} requests, decode {requests * OUTPUT / rest:.1f} tokens/s", flush=True)
    for requests in (1, 8):
        speed = requests * LONG_PROMPT / seconds(requests, LONG_PROMPT, 1)
        print(f"{os.environ['VLLM_PLATFORM']}: {requests} requests, prefill {speed:.1f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
