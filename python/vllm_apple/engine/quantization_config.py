"""What vLLM is told of quantised checkpoints, which the engine reads itself: one method that takes all of them, for vLLM's own have the
limits of their kernels. It can be imported only when vLLM knows its platform."""

import json
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from vllm_apple import _engine, compat
from vllm_apple.engine.quantization import AT_LOAD, STORED

logger = init_logger("vllm.apple.quantization")


class AppleQuantizationConfig(QuantizationConfig):
    """That the engine takes a checkpoint. No layer of vLLM's is ever made."""

    def get_name(self) -> str:
        return STORED

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AppleQuantizationConfig":
        return cls()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> None:
        return None

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, **_: Any) -> str:
        """vLLM asks for each checkpoint that says how it is quantised, before its own methods are asked."""
        # vLLM writes an empty method where there is none, as in MLX's.
        fields = {name: value for name, value in hf_quant_cfg.items() if (name, value) != ("quant_method", "")}
        try:
            _engine.check_quantization(json.dumps({"quantization_config": fields}), user_quant)
        except ValueError as error:
            raise ValueError(str(error).replace("`quantization`", "--quantization")) from None
        return STORED


def _forget_cache(model_config: Any) -> None:
    """What a checkpoint says of its KV cache, which vLLM would take for the user's wish: the engine's are of floats. The method above is
    no place for it: it is shown a copy, and by 0.15 to 0.19 nothing else."""
    config = getattr(model_config.hf_config, "quantization_config", None)
    for level in (config, config.get("quantization")) if isinstance(config, dict) else ():
        for field in ("kv_cache_scheme", "kv_cache_quant_algo"):
            if isinstance(level, dict) and level.pop(field, None) is not None:
                logger.info("the checkpoint's scales for KV caches of few bits are not used: --kv-cache-dtype says what is")


def register() -> None:
    """More than once in a process does no harm."""
    for name in (STORED, *AT_LOAD):
        if name not in QUANTIZATION_METHODS:
            register_quantization_config(name)(AppleQuantizationConfig)
    compat.on_model_config(_forget_cache)
