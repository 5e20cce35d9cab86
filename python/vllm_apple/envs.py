"""The environment variables of the plugin, read when they are asked for, as in vllm.envs. It knows no default of the engine's."""

import os
from collections.abc import Callable
from typing import Any


def _flag(name: str, default: bool) -> Callable[[], bool]:
    def read() -> bool:
        value = os.environ.get(name, "")
        if value not in ("", "0", "1"):
            raise ValueError(f"{name} must be 0 or 1, got {value!r}")
        return value == "1" if value else default

    return read


def _number(name: str) -> Callable[[], int | None]:
    def read() -> int | None:
        value = os.environ.get(name, "")
        if value and (not value.isdecimal() or int(value) == 0):
            raise ValueError(f"{name} must be a number from 1 on, got {value!r}")
        return int(value) if value else None

    return read


def _text(name: str) -> Callable[[], str]:
    return lambda: os.environ.get(name, "")


variables: dict[str, Callable[[], Any]] = {
    # `apple` asks for this platform; the name of another one does without it.
    "VLLM_PLATFORM": _text("VLLM_PLATFORM"),
    # auto, cpu, metal or software-metal.
    "VLLM_APPLE_DEVICE": _text("VLLM_APPLE_DEVICE"),
    # Threads that compute on the CPU.
    "VLLM_APPLE_THREADS": _number("VLLM_APPLE_THREADS"),
    # int8: what quantised weights multiply the activations as, rounded.
    "VLLM_APPLE_ACTIVATION_DTYPE": _text("VLLM_APPLE_ACTIVATION_DTYPE"),
    # 0: the CPU instead of Metal.
    "VLLM_APPLE_USE_ENGINE": _flag("VLLM_APPLE_USE_ENGINE", True),
    # 0: steps with more than one new token of a request by the reference formulas, on the host.
    "VLLM_APPLE_ENGINE_PREFILL": _flag("VLLM_APPLE_ENGINE_PREFILL", True),
    # 0: attention on the host.
    "VLLM_METAL_ATTENTION": _flag("VLLM_METAL_ATTENTION", True),
    # 1: what would be computed on the host is an error.
    "VLLM_METAL_STRICT": _flag("VLLM_METAL_STRICT", False),
    # An older name of the same.
    "VLLM_METAL_STRICT_NO_MPS": _flag("VLLM_METAL_STRICT_NO_MPS", False),
    # Most MiB of the ops' scratch.
    "VLLM_METAL_SCRATCH_POOL_MB": _number("VLLM_METAL_SCRATCH_POOL_MB"),
    # Most tokens of a step.
    "VLLM_METAL_MAX_BATCH_SIZE": _number("VLLM_METAL_MAX_BATCH_SIZE"),
    # 1: also the GPU of a virtual machine.
    "VLLM_METAL_ALLOW_VM": _flag("VLLM_METAL_ALLOW_VM", False),
}


def __getattr__(name: str) -> Any:
    if name in variables:
        return variables[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
