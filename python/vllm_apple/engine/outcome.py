"""From a step's plain results to vLLM's output. It knows no request's parameters."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput

if TYPE_CHECKING:
    from vllm_apple._engine import Table


def _arrays(table: "Table") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    width, tokens, logprobs, ranks = table
    shape = (-1, width)
    return (
        np.frombuffer(tokens, np.int32).reshape(shape),
        np.frombuffer(logprobs, np.float32).reshape(shape),
        np.frombuffer(ranks, np.int32),
    )


def _tensors(table: "Table") -> LogprobsTensors:
    return LogprobsTensors(*(torch.tensor(array) for array in _arrays(table)))


def model_runner_output(req_ids: list[str], result: tuple[Any, ...]) -> ModelRunnerOutput:
    """What vLLM's scheduler takes in after a step of these requests."""
    tokens, table, prompts, failed = result
    nans = {req_id: 1 for req_id, _, is_nan in failed if is_nan}
    return ModelRunnerOutput(
        req_ids=req_ids,
        req_id_to_index={req_id: index for index, req_id in enumerate(req_ids)},
        sampled_token_ids=tokens,
        logprobs=None if table is None else LogprobsLists(*_arrays(table), None),
        prompt_logprobs_dict={req_id: _tensors(scores) for req_id, scores in prompts},
        pooler_output=[],
        num_nans_in_logits=nans or None,
    )
