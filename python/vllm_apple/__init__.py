"""vLLM's platform plugin: registers the platform with vLLM, and notices if vLLM runs on another. It computes nothing."""

import os
import sys
from multiprocessing import parent_process

PLATFORM = "vllm_apple.platform.ApplePlatform"


def register() -> str | None:
    """Names the platform's class, or None where it is not wanted. vLLM calls this while it is being imported, more than once."""
    try:
        return _register()
    except BaseException as error:
        # vLLM would say nothing and go on without the plugin.
        print(f"vllm-apple: the plugin cannot be registered: {error!r}", file=sys.stderr)
        raise


def _register() -> str | None:
    from vllm_apple import compat, envs

    asked = envs.VLLM_PLATFORM
    if asked not in ("", "apple"):
        return None
    if not asked and (others := compat.other_platforms()):
        from vllm.logger import init_logger

        # vLLM sets up its loggers later, and what is less than a warning would not be seen.
        init_logger("vllm.apple").warning("vllm-apple stands back for %s: VLLM_PLATFORM=apple chooses it", ", ".join(others))
        return None
    compat.prepare()
    return PLATFORM


def check_platform() -> None:
    """Fails if vLLM has chosen another platform although this one is asked for. vLLM calls this in each of its processes, before it
    makes a configuration."""
    from vllm.platforms import current_platform

    from vllm_apple import compat, envs

    compat.know_variables()
    asked = envs.VLLM_PLATFORM
    if asked not in ("", *(known := compat.platform_names())):
        # Or vLLM would compute on its CPU platform for a typo, without a word.
        raise RuntimeError(f"VLLM_PLATFORM={asked!r} is no platform: it may be {', '.join(known)}")
    target = os.environ.get("VLLM_TARGET_DEVICE", "").lower()
    found = f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"
    if found == PLATFORM:
        compat.prefer_synchronous_scheduling()
        compat.sleep_without_an_allocator()
        from vllm_apple.engine import quantization_config

        quantization_config.register()
    elif asked == "apple":
        raise RuntimeError(
            f"VLLM_PLATFORM=apple, but vLLM runs on {found}: unset VLLM_TARGET_DEVICE={os.environ.get('VLLM_TARGET_DEVICE', '')!r}, "
            "and uninstall other platform plugins; `vllm-apple:` above says if the plugin failed"
        )
    elif target == "cpu" and current_platform.is_cpu() and not asked and parent_process() is None:
        from vllm.logger import init_logger

        # vLLM, since 0.32 at the latest, has asked no plugin. The first process says it for those that it starts.
        init_logger("vllm.apple").warning(
            "vLLM computes on its own CPU platform, not with vllm-apple, because of VLLM_TARGET_DEVICE=cpu: unset it and set "
            "VLLM_PLATFORM=apple to compute with vllm-apple, or set VLLM_PLATFORM=cpu if this is meant"
        )
