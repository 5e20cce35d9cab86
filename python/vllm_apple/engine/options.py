"""From vLLM's configuration to the engine's options, and what of it the engine cannot do. It loads nothing."""

import os
from importlib.metadata import entry_points
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import vllm.envs
from vllm.logger import init_logger

from vllm_apple import _engine, compat, envs
from vllm_apple.engine import quantization
from vllm_apple.engine.params import MAX_LOGPROBS

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.apple.options")

_DTYPES = ("bfloat16", "float16", "float32")
# The engine looks for safetensors itself, whichever of these is said.
_LOAD_FORMATS = ("auto", "hf", "safetensors", "dummy")

# How messages of the engine name its options, and how vLLM's user sets them.
_SETTINGS = {
    "`dtype`": "--dtype",
    "`quantization`": "--quantization",
    "`kv_cache_dtype`": "--kv-cache-dtype",
    "`device`": "VLLM_APPLE_DEVICE",
    "`block_size`": "--block-size",
    "`kv_cache_memory`": "--gpu-memory-utilization or --kv-cache-memory-bytes",
    "`max_model_len`": "--max-model-len",
    "`max_num_batched_tokens`": "--max-num-batched-tokens",
    "`max_num_seqs`": "--max-num-seqs",
    "`threads`": "VLLM_APPLE_THREADS",
    "`activation_dtype`": "VLLM_APPLE_ACTIVATION_DTYPE",
    "`metal_attention`": "VLLM_METAL_ATTENTION",
    "`metal_prefill`": "VLLM_APPLE_ENGINE_PREFILL",
    "`metal_strict`": "VLLM_METAL_STRICT",
    "`metal_scratch_pool`": "VLLM_METAL_SCRATCH_POOL_MB",
    "`metal_max_batch_size`": "VLLM_METAL_MAX_BATCH_SIZE",
    "`metal_allow_vm`": "VLLM_METAL_ALLOW_VM",
}

# Metal's own checks, under which no compiled kernels are kept.
METAL_CHECKS = ("MTL_SHADER_VALIDATION", "MTL_DEBUG_LAYER", "METAL_DEVICE_WRAPPER_TYPE")


def in_vllms_words(message: str) -> str:
    for name, setting in _SETTINGS.items():
        message = message.replace(name, setting)
    return message


def engine_options(config: "VllmConfig") -> dict[str, Any]:
    """What `_engine.Engine` takes."""
    model, cache, load = config.model_config, config.cache_config, config.load_config
    megabytes = envs.VLLM_METAL_SCRATCH_POOL_MB
    is_validated = any(os.environ.get(name) not in (None, "", "0") for name in METAL_CHECKS)
    return {
        "model": model.model,
        # vLLM may have pinned a branch or a tag to a commit, and has read the configuration of that one.
        "revision": getattr(model.revision, "resolved", None) or model.revision,
        "token": model.hf_token if isinstance(model.hf_token, str) else huggingface_hub.get_token(),
        # The engine knows fewer of the variables that say where the cache is.
        "download_dir": load.download_dir or huggingface_hub.constants.HF_HUB_CACHE,
        "dummy": load.load_format == "dummy",
        "device": device(),
        "threads": envs.VLLM_APPLE_THREADS,
        "attention": envs.VLLM_METAL_ATTENTION,
        "prefill": envs.VLLM_APPLE_ENGINE_PREFILL,
        "strict": envs.VLLM_METAL_STRICT or envs.VLLM_METAL_STRICT_NO_MPS,
        "scratch_pool": megabytes and megabytes << 20,
        "max_batch_size": envs.VLLM_METAL_MAX_BATCH_SIZE,
        "allow_vm": envs.VLLM_METAL_ALLOW_VM,
        # Apple documents its shader validation as incompatible with archives of machine code.
        "cache": None if is_validated else str(Path(vllm.envs.VLLM_CACHE_ROOT) / "vllm-apple"),
        "quantization": quantization.at_load(model.quantization),
        "dtype": str(model.dtype).removeprefix("torch."),
        "activation_dtype": envs.VLLM_APPLE_ACTIVATION_DTYPE or "auto",
        "kv_cache_dtype": None if cache.cache_dtype == "auto" else cache.cache_dtype,
        "max_model_len": model.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "block_size": cache.block_size,
    }


def device() -> str:
    asked = envs.VLLM_APPLE_DEVICE or "auto"
    if envs.VLLM_APPLE_USE_ENGINE or asked == "cpu":
        return asked
    if asked != "auto":
        logger.warning("VLLM_APPLE_USE_ENGINE=0 is ignored: the Metal kernels are asked for")
        return asked
    logger.info("VLLM_APPLE_USE_ENGINE=0: computing on the CPU")
    return "cpu"


# What `share_processor` has set in this process.
_share: str | None = None


def share_processor(config: "VllmConfig") -> None:
    """An equal share for each engine of this machine. It is told in the environment: engines themselves do not know how many they are."""
    global _share
    # What an earlier configuration of this process has set is not the user's. A process that it has started is one of the engines.
    if _share is not None and parent_process() is None and os.environ.get("VLLM_APPLE_THREADS") == _share:
        del os.environ["VLLM_APPLE_THREADS"]
    _share = None
    engines = config.parallel_config.data_parallel_size_local
    if engines > 1 and envs.VLLM_APPLE_THREADS is None:
        _share = os.environ["VLLM_APPLE_THREADS"] = str(max(1, _engine.available_parallelism() // engines))


def refusals(config: "VllmConfig") -> list[str]:
    """What is configured that the engine cannot do."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    load, scheduler = config.load_config, config.scheduler_config
    processors = [processor.value for processor in entry_points(group="vllm.logits_processors")]
    unsupported = {
        "tensor, pipeline and context parallelism (data parallelism is supported)": parallel.world_size > 1,
        "LoRA": config.lora_config is not None,
        "speculative decoding": config.speculative_config is not None,
        "--enable-expert-parallel with data parallelism": parallel.enable_expert_parallel and parallel.data_parallel_size > 1,
        "offloading of weights (--cpu-offload-gb, --offload-group-size)": compat.offloads_weights(config),
        "--weight-transfer-config": getattr(config, "weight_transfer_config", None) is not None,
        "--enable-return-routed-experts": compat.returns_experts(config),
        "a KV connector": config.kv_transfer_config is not None or config.ec_transfer_config is not None,
        "--kv-offloading-size": bool(cache.kv_offloading_size),
        "watermarks": getattr(config, "watermark_config", None) is not None,
        "--profiler-config (`vllm-apple bench` measures the engine)": compat.profiles(config),
        "the second model runner (VLLM_USE_V2_MODEL_RUNNER=1)": compat.uses_second_runner(config),
        "VLLM_USE_MODELSCOPE": vllm.envs.VLLM_USE_MODELSCOPE,
        # It asks nobody whether a request can be done.
        "VLLM_USE_RUST_FRONTEND=1": os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"),
        f"--kv-cache-dtype {cache.cache_dtype}": cache.cache_dtype not in ("auto", *_DTYPES),
        f"--load-format {load.load_format}": load.load_format not in _LOAD_FORMATS,
    }
    if model is not None:
        unsupported |= {
            f"--runner {model.runner_type}": model.runner_type != "generate",
            "--enable-prompt-embeds": model.enable_prompt_embeds,
            "--quantization-config": getattr(model, "quantization_config", None) is not None,
            "--hf-overrides": bool(model.hf_overrides),
            "--hf-config-path": model.hf_config_path is not None,
            # The engine keeps the checkpoint's window; without the variable, vLLM keeps requests within it.
            "--disable-sliding-window with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1": model.disable_sliding_window
            and vllm.envs.VLLM_ALLOW_LONG_MAX_MODEL_LEN,
            "--max-model-len auto": model.original_max_model_len == -1,
            "--model-class-overrides": bool(getattr(model, "model_class_overrides", None)),
            f"--model-impl {model.model_impl}": model.model_impl not in ("auto", "vllm"),
            "--logits-processors": bool(model.logits_processors),
            # vLLM applies them to every request, without being asked.
            f"the logits processors of other packages ({', '.join(processors)}): uninstall them": bool(processors),
            f"--logprobs-mode {model.logprobs_mode}": model.logprobs_mode != "raw_logprobs",
            "images": model.is_multimodal_model,
        }
    most = envs.VLLM_METAL_MAX_BATCH_SIZE
    if most is not None and scheduler.max_num_batched_tokens > most:
        reason = f"--max-num-batched-tokens {scheduler.max_num_batched_tokens} above VLLM_METAL_MAX_BATCH_SIZE={most}"
        unsupported[reason] = True
    return [what for what, is_asked in unsupported.items() if is_asked]


def limit_logprobs(config: "VllmConfig") -> None:
    """vLLM itself refuses what is above."""
    model = config.model_config
    if not 0 <= model.max_logprobs <= MAX_LOGPROBS:
        logger.info("--max-logprobs %d: vllm-apple has %d at most, and takes that", model.max_logprobs, MAX_LOGPROBS)
        model.max_logprobs = MAX_LOGPROBS
