"""The platform as vLLM sees it: what it is, and what of a configuration or a request it refuses. It opens no device."""

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

import psutil
import torch
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

from vllm_apple import compat
from vllm_apple.engine import options, params, quantization

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM shows what is logged below its own name.
logger = init_logger("vllm.apple")

_BLOCK_SIZE = 32
_LARGEST_TOTAL = 64 << 30


class ApplePlatform(Platform):
    """Apple silicon, or the CPU where there is none."""

    _enum = PlatformEnum.OOT
    device_name = "apple"
    # Of torch's tensors, which hold log-probabilities and no more.
    device_type = "cpu"
    dispatch_key = "CPU"
    # Ray knows no GPU here; `--data-parallel-size-local` says how many engines a machine has.
    ray_device_key = "CPU"
    dist_backend = "gloo"

    # Of the models that this process knows the largest: requests do not say for which they are.
    _vocab_size: int | None = None

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"{cls.device_name}-{device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        # vLLM asks to choose how large a step is by default: from 70 GiB on as large as for the GPUs of data centres.
        return min(int(psutil.virtual_memory().total), _LARGEST_TOTAL)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        pass

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        pass

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM's own kernels are not used."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """The same."""

    def is_sleep_mode_available(self) -> bool:
        return True

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        return "vllm_apple.v1.attention.backends.apple.AppleAttentionBackend"

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        """vLLM 0.12 takes only names of its own for `--quantization`, and asks before the command line is read."""
        # argparse has no other way to an option that is there.
        option = None if parser is None else parser._option_string_actions.get("--quantization")
        if option is not None and option.choices is not None:
            option.choices = list(dict.fromkeys([*option.choices, *quantization.NAMES]))

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        if note := compat.version_note():
            logger.warning(note)
        if refused := options.refusals(vllm_config):
            raise ValueError(f"vllm-apple does not support {'; '.join(refused)}")
        if ignored := compat.ignored(vllm_config):
            logger.info("vllm-apple ignores %s", ", ".join(ignored))
        parallel, model, cache = vllm_config.parallel_config, vllm_config.model_config, vllm_config.cache_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "vllm_apple.v1.worker.worker.AppleWorker"
        # The engine has threads of its own, and on macOS a device must not be inherited: one worker, in vLLM's own engine process.
        if parallel.data_parallel_size == 1 and parallel.distributed_executor_backend not in (None, "uni"):
            logger.info(
                "--distributed-executor-backend %s is ignored: the worker runs in the engine's process (uni)",
                parallel.distributed_executor_backend,
            )
        parallel.distributed_executor_backend = "uni"
        parallel.disable_custom_all_reduce = True
        options.share_processor(vllm_config)
        if sys.platform == "darwin":
            # A process that has opened Metal, or torch, cannot be copied.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        # Since 0.18, vLLM has put in its own by now.
        if cache.block_size is None or not getattr(cache, "user_specified_block_size", True):
            cache.block_size = _BLOCK_SIZE
        if model is not None:
            # There is no torch model to compile.
            model.enforce_eager = True
            model.disable_cascade_attn = True
            options.limit_logprobs(vllm_config)
            compat.forget_experts(vllm_config)
            cls._vocab_size = max(cls._vocab_size or 0, model.get_vocab_size())

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """vLLM asks with what it has found for a checkpoint, or the user's word for one of floats."""
        quantization.check_method(quant)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: "VllmConfig") -> None:
        """No layer of torch's has a wish."""

    @classmethod
    def validate_request(cls, *args: Any, **kwargs: Any) -> None:
        """Raises what a client sees as its mistake if the engine cannot do it: an exception within a step would end vLLM."""
        asked, prompt_token_ids = compat.request_arguments(args, kwargs)
        params.check(asked, prompt_token_ids, cls._vocab_size)
