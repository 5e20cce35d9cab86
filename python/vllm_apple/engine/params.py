"""vLLM's sampling parameters for the engine, and why a request is refused. It knows no request that runs."""

from typing import TYPE_CHECKING, Any

from vllm_apple import _engine, compat

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

# The engine's own limit: it keeps the most likely tokens only.
MAX_LOGPROBS = 20
_U32_MAX = 2**32 - 1

# What other engines of vLLM can, by the field that asks for it.
_UNSUPPORTED = (
    "logprob_token_ids",
    "prompt_logprob_token_ids",
    "trace_decode_token_ids",
    "watermarking",
)


def engine_params(params: "SamplingParams", seed: int, thinking_markers: dict[str, list[int]] | None = None) -> dict[str, Any]:
    """What `_engine` takes; `seed` is for a request without one."""
    budget = getattr(params, "thinking_token_budget", None)  # not in 0.12
    return {
        "temperature": params.temperature,
        # vLLM also writes -1 for all.
        "top_k": min(max(params.top_k, 0), _U32_MAX),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "logit_bias": [(token, bias) for token, bias in (params.logit_bias or {}).items() if 0 <= token <= _U32_MAX],
        "stop_token_ids": sorted(token for token in params.all_stop_token_ids if 0 <= token <= _U32_MAX),
        "min_tokens": min(params.min_tokens, _U32_MAX),
        "logprobs": params.logprobs,
        "prompt_logprobs": params.prompt_logprobs,
        "seed": (seed if params.seed is None else params.seed) % 2**64,
        "allowed_token_ids": params.allowed_token_ids,
        "bad_words": params.bad_words_token_ids or [],
        "eos_token_id": compat.end_token(params),
        # Without markers, vLLM itself refuses a budget.
        "thinking": None if budget in (None, -1) or thinking_markers is None else thinking_markers | {"budget": min(budget, _U32_MAX)},
    }


def check(params: Any, prompt_token_ids: list[int] | None, vocab_size: int | None) -> None:
    """Raises a refusal if the engine cannot do what is asked: within a step it would be too late."""
    from vllm.sampling_params import SamplingParams

    if not isinstance(params, SamplingParams):
        raise compat.refusal("pooling is not supported by vllm-apple: only text generation is")
    for field in _UNSUPPORTED:
        value = getattr(params, field, None)
        if value is not None and value is not False:
            raise compat.refusal(f"{field} is not supported by vllm-apple")
    for field in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, field)
        if asked is not None and not 0 <= asked <= MAX_LOGPROBS:
            raise compat.refusal(f"{field} must be from 0 to {MAX_LOGPROBS} with vllm-apple, got {asked}")
    if (getattr(params, "thinking_token_budget", None) or 0) < -1:
        raise compat.refusal(f"thinking_token_budget must be at least 0, or -1 for none, got {params.thinking_token_budget}")
    if params.prompt_logprobs is not None and params.skip_reading_prefix_cache is False:
        raise compat.refusal("prompt_logprobs needs the whole prompt: skip_reading_prefix_cache must not be false with vllm-apple")
    for token in params.allowed_token_ids or ():
        if not 0 <= token < (vocab_size or _U32_MAX):
            raise compat.refusal(f"allowed_token_ids contains {token}, which is not in the vocabulary of {vocab_size}")
    if not prompt_token_ids:
        raise compat.refusal("the prompt is empty: vllm-apple needs one of at least one token")
    for token in (min(prompt_token_ids), max(prompt_token_ids)):
        if not 0 <= token < (vocab_size or _U32_MAX):
            raise compat.refusal(f"the prompt contains token {token}, which is not in the vocabulary of {vocab_size}")
    try:
        _engine.check_params(engine_params(params, 0), vocab_size or _U32_MAX)
    except (TypeError, ValueError) as error:
        raise compat.refusal(str(error)) from None
