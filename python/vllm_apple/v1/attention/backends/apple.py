"""What vLLM may ask about attention, and where the engine computes it. The engine itself decides, by the same rules; nothing runs here."""

from typing import Any

from vllm_apple import compat, envs

# docs/METAL.md: what the kernels take.
_METAL_HEAD_MULTIPLE = 8
_METAL_MAX_HEAD = 256
_METAL_BLOCK_MULTIPLE = 16


class AppleAttentionBackend(compat.attention_backend_base()):  # type: ignore[misc]
    """Attention in the engine."""

    @staticmethod
    def get_name() -> str:
        return "APPLE"

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError("attention is computed by the engine, not by torch")

    @staticmethod
    def get_builder_cls() -> Any:
        raise NotImplementedError("attention is computed by the engine, not by torch")

    @staticmethod
    def get_metadata_cls() -> Any:
        raise NotImplementedError("attention is computed by the engine, not by torch")

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *args: Any, **kwargs: Any
    ) -> tuple[int, ...]:
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        return [_METAL_BLOCK_MULTIPLE]


def describe_sharing(layers: int) -> str:
    """That so many layers have no KV cache of their own: what vLLM calls `kv_sharing_target_layer_name`."""
    return f" (and {layers} that read the KV cache of an earlier one)" if layers else ""


def describe(engine_device: str, head_size: int, block_size: int) -> str:
    """Where attention over such a cache is computed, and why, in words."""
    if not engine_device.endswith("metal"):
        return "on the CPU"
    if not envs.VLLM_METAL_ATTENTION:
        return "on the host (VLLM_METAL_ATTENTION=0)"
    if head_size % _METAL_HEAD_MULTIPLE or head_size > _METAL_MAX_HEAD:
        return f"on the host (the Metal kernels take no heads of {head_size} elements)"
    if block_size % _METAL_BLOCK_MULTIPLE:
        return f"on the host (the Metal kernels take no blocks of {block_size} tokens)"
    return "by the Metal kernels"
