"""The engine's extension module, written in Rust (src/)."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

# Width, int32 tokens, float32 log-probabilities, int32 ranks. A row: the token itself, then the alternatives, best first.
Table = tuple[int, bytes, bytes, bytes]

def log_to(logger: logging.Logger) -> None:
    """Gives what the engine logs to `logger`, from now on: once in a process."""

def check_params(params: Mapping[str, Any], vocab_size: int) -> None:
    """Raises ValueError if a parameter (`vllm_apple.engine.params`) is out of its range."""

def check_quantization(config: str, asked: str | None = None) -> None:
    """Raises ValueError if weights are not read that are quantised as `config`, fields of a config.json, says, or not as `asked`."""

def available_parallelism() -> int:
    """Threads that this process may run at once: its affinity and its control group count."""

class Engine:
    """A loaded model. Errors are RuntimeError, or what a signal's handler raises; after one of `step`, nothing is known of the requests
    that ran."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Opens the device and loads the weights, downloaded if need be; see `vllm_apple.engine.options`."""

    @property
    def device(self) -> str: ...
    @property
    def memory_limit(self) -> int | None:
        """Bytes that the device recommends to use at most."""

    @property
    def available_memory(self) -> int:
        """Bytes that were free before loading, and at most `memory_limit`."""

    @property
    def model_memory(self) -> int:
        """Bytes of all but the KV cache."""

    @property
    def kv_block(self) -> tuple[int, int, int, str, int]:
        """Layers with a cache, key heads, elements of a head, type, and bytes of a block in all layers."""

    @property
    def executor_seconds(self) -> float:
        """Time spent computing since `allocate`."""

    def allocate(self, num_blocks: int) -> None:
        """Makes the model ready for steps; loads it anew after `release`, however much memory is free then."""

    def release(self) -> None:
        """Gives back all memory. Requests stay known; those that vLLM does not compute anew end in their next step."""

    def update(
        self,
        finished: Sequence[str],
        new: Sequence[tuple[str, Sequence[int], int, Sequence[int], Mapping[str, Any]]],
        changes: Any,
    ) -> None:
        """What the scheduler says before a step. `new`: id, prompt, computed tokens, blocks, parameters. `changes`: CachedRequestData."""

    def step(
        self, scheduled: Sequence[tuple[str, int]], grammar: Mapping[str, bytes]
    ) -> tuple[list[list[int]], Table | None, list[tuple[str, Table]], list[tuple[str, str, bool]]]:
        """Computes tokens of requests. `grammar`: a bit per allowed token, in words of 32.

        Returns tokens and, if any request asked, log-probabilities, both in the order of `scheduled`; the log-probabilities of prompts
        whose first token is among the tokens; and requests that end with an error: id, reason, whether their logits are no numbers.
        """
