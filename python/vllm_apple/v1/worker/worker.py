"""The worker: vLLM's calls, one after the other, handed to the engine. It keeps no state of requests, and computes nothing."""

import random
from typing import TYPE_CHECKING, Any

import psutil
import torch
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
from vllm.v1.worker.worker_base import WorkerBase

from vllm_apple import _engine, compat
from vllm_apple.engine.options import engine_options, in_vllms_words
from vllm_apple.engine.outcome import model_runner_output
from vllm_apple.engine.params import engine_params
from vllm_apple.v1.attention.backends import apple

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.output import GrammarOutput, NewRequestData, SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

logger = init_logger("vllm.apple.worker")
_engine.log_to(init_logger("vllm.apple.engine"))
compat.refuse_sleep_that_keeps_prefixes()


class AppleWorker(WorkerBase):
    """One engine on one device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("shared_worker_lock", None)  # 0.12
        super().__init__(*args, **kwargs)
        self.engine: _engine.Engine | None = None
        self.num_blocks = 0
        self.asleep = False
        self.scheduled: list[tuple[str, int]] = []
        # vLLM's own, of the requests that it runs.
        self.params: dict[str, SamplingParams] = {}
        # Requests without a seed get theirs from vLLM's: other ones in each engine, or the answers to one request would be the same.
        self.seeds = random.Random(f"{self.model_config.seed} {compat.engine_rank(self.vllm_config)}")
        self.thinking_markers = compat.thinking_markers(self.vllm_config)

    # Start, in the order of the calls.

    def init_device(self) -> None:
        self.device = torch.device("cpu")

    def load_model(self, **_: Any) -> None:
        try:
            self.engine = _engine.Engine(engine_options(self.vllm_config))
        except RuntimeError as error:
            raise RuntimeError(in_vllms_words(str(error))) from None
        layers, heads, head_size, dtype, _bytes = self.engine.kv_block
        device = self.engine.device
        attention = apple.describe(device.split()[0], head_size, self.cache_config.block_size)
        logger.info(
            "vllm-apple computes on %s; %d layers%s of %d KV heads of %d, %s; attention %s",
            device,
            layers,
            apple.describe_sharing(self.model_config.get_total_num_hidden_layers() - layers),
            heads,
            head_size,
            dtype,
            attention,
        )

    def get_kv_cache_spec(self) -> dict[str, FullAttentionSpec]:
        layers, heads, head_size, dtype, _ = self._loaded.kv_block
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size, num_kv_heads=heads, head_size=head_size, dtype=getattr(torch, dtype)
        )
        return {f"model.layers.{layer}.self_attn.attn": spec for layer in range(layers)}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        # The engine has its own, which vLLM does not see.
        return ["LBNHC"]

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: what the model leaves of `gpu_memory_utilization` of the device's memory, or of nine tenths of what is
        free where that is less: the rest of the machine lives on the same memory."""
        if self.cache_config.kv_cache_memory_bytes:
            return int(self.cache_config.kv_cache_memory_bytes)
        engine = self._loaded
        total = engine.memory_limit or psutil.virtual_memory().total
        allowed = int(total * self.cache_config.gpu_memory_utilization)
        # At most `memory_limit`, which is no matter of what is free.
        free = engine.available_memory
        if free < total and (most := int(free * 0.9)) < allowed:
            logger.warning(
                "gpu_memory_utilization allows %.2f GiB, but only %.2f GiB were free before loading: taking nine tenths of them",
                allowed / 2**30,
                free / 2**30,
            )
            allowed = most
        return allowed - engine.model_memory

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        self.num_blocks = kv_cache_config.num_blocks
        self._allocate()

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:  # 0.12
        self.cache_config.num_gpu_blocks = num_gpu_blocks
        self.cache_config.num_cpu_blocks = num_cpu_blocks

    def compile_or_warm_up_model(self) -> Any:
        """Done with the allocation."""
        return compat.compilation_times()

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    # Steps.

    def execute_model(self, scheduler_output: "SchedulerOutput") -> "ModelRunnerOutput | None":
        """Takes in what is scheduled; `sample_tokens` computes it."""
        if copies := getattr(scheduler_output, "kv_cache_block_copies", None):  # not in 0.12
            raise RuntimeError(f"vLLM wants blocks of the KV cache copied ({copies[:3]}), which vllm-apple cannot: please report this")
        for req_id in scheduler_output.finished_req_ids:
            self.params.pop(req_id, None)
        new = [self._new_request(request) for request in scheduler_output.scheduled_new_reqs]
        self._loaded.update(list(scheduler_output.finished_req_ids), new, scheduler_output.scheduled_cached_reqs)
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        if self.asleep:  # 0.12
            logger.warning("vLLM has a request computed while it sleeps: waking up")
            self.wake_up()
        self.scheduled = list(scheduler_output.num_scheduled_tokens.items())
        return None

    def sample_tokens(self, grammar_output: "GrammarOutput | None") -> "ModelRunnerOutput | None":
        if not self.scheduled:
            return None
        scheduled, self.scheduled = self.scheduled, []
        grammar = {}
        if grammar_output is not None:
            masks = (row.tobytes() for row in grammar_output.grammar_bitmask)
            grammar = dict(zip(grammar_output.structured_output_request_ids, masks, strict=False))
        result = self._loaded.step(scheduled, grammar)
        for req_id, reason, _ in result[3]:
            logger.error("request %s ends with its end token: %s", req_id, reason)
            self._end_at_end_token(self.params[req_id])
        return model_runner_output([req_id for req_id, _ in scheduled], result)

    def _new_request(self, new: "NewRequestData") -> tuple[Any, ...]:
        params = engine_params(new.sampling_params, self.seeds.getrandbits(64), self.thinking_markers)
        self.params[new.req_id] = new.sampling_params
        return (new.req_id, new.prompt_token_ids, new.num_computed_tokens, new.block_ids[0], params)

    def _end_at_end_token(self, params: "SamplingParams") -> None:
        """Also with `ignore_eos`. A worker cannot end a request, but it shares the parameters with the scheduler of its process."""
        params.stop_token_ids = [*(params.stop_token_ids or ()), compat.end_token(params) or 0]

    # All else.

    def sleep(self, level: int = 1) -> None:
        """Gives back all memory: there is no other place for the weights on a machine whose memory is one."""
        self._loaded.release()
        self.asleep = True

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads everything anew, with the KV cache as the last."""
        if self.asleep and (tags is None or "kv_cache" in tags):
            self._allocate()

    def discard(self, tags: list[str]) -> None:
        """What vLLM asks for to use the memory of the KV cache otherwise; waking up brings it back."""
        if "kv_cache" in tags:
            self.sleep()

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """What vLLM asks for after a deep sleep, before the KV cache wakes up, which reads the weights from their files."""
        if args or kwargs:
            raise NotImplementedError("vllm-apple reloads weights from the model's own files only: call reload_weights without arguments")
        if not self.asleep:
            raise NotImplementedError("vllm-apple reads weights again only when it wakes up: call sleep and wake_up instead")

    def profile(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("vllm-apple has no torch profiler: `vllm-apple bench` measures the engine")

    def shutdown(self) -> None:
        if self.engine is not None:
            self.engine.release()

    def update_max_model_len(self, max_model_len: int) -> None:
        """A smaller one than the engine was loaded for."""
        self.model_config.max_model_len = max_model_len

    def get_model(self) -> Any:
        raise NotImplementedError("vllm-apple has no torch model")

    def get_model_inspection(self) -> str:
        return f"computed by vllm-apple on {self._loaded.device}"

    def add_lora(self, *args: Any, **kwargs: Any) -> bool:
        raise NotImplementedError("vllm-apple does not support LoRA")

    def list_loras(self) -> set[int]:
        return set()

    def check_health(self) -> None:
        pass

    def synchronize_device(self) -> None:
        pass

    def reset_mm_cache(self) -> None:
        pass

    def reset_encoder_cache(self) -> None:
        pass

    def execute_dummy_batch(self) -> None:
        """Engines of a data-parallel group share no layer, so that an idle one has nothing to do."""

    def take_draft_token_ids(self) -> None:
        return None

    @property
    def _loaded(self) -> _engine.Engine:
        assert self.engine is not None, "load_model comes first"
        return self.engine

    def _allocate(self) -> None:
        try:
            self._loaded.allocate(self.num_blocks)
            self.asleep = False
        except RuntimeError as error:
            raise RuntimeError(in_vllms_words(str(error))) from None
