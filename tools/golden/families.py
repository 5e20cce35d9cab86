"""One tiny configuration per model family and rope scaling. Knows neither weights nor prompts."""

from dataclasses import dataclass, field

import transformers as hf


@dataclass(frozen=True)
class Family:
    """A checkpoint to make. `old_spelling` rewrites config.json as transformers 4.4x wrote it."""

    name: str
    config: type
    model: type
    tokenizer: str
    stored_dtype: str
    overrides: dict
    old_spelling: bool = False
    max_shard_size: str = "50GB"
    # Lengths of prompts with greedy continuations, and of those beyond max_position_embeddings (logits only).
    prompt_lengths: tuple[int, ...] = (1, 7, 40, 100)
    beyond_lengths: tuple[int, ...] = ()
    # What older transformers wrote into config.json besides, read or ignored by the model.
    old_keys: dict = field(default_factory=dict)
    # Around which the weights of norms lie: 0 where the model adds 1 to them.
    norm_mean: float = 1.0
    # Of embedding and output head: less where the model scales what it embeds, lest every token be followed by itself.
    embedding_deviation: float = 0.4
    # Of experts' gates and ups, where these are large enough to reach the bounds of their activation.
    gate_up_deviation: float | None = None


def _base(vocab_size: int, **changes) -> dict:
    """Small, and with few round numbers: 3 query heads' worth of anything is a bug found."""
    common = dict(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        # Neither 1e-5 nor 1e-6, and large enough that a wrong value shows in the logits.
        rms_norm_eps=3e-4,
    )
    return common | changes


QWEN_VOCAB = 512  # more rows than the tokenizer has tokens, as in Qwen's own checkpoints
LLAMA2_VOCAB = 443  # odd, so that no kernel tile fits
LLAMA3_VOCAB = 448


def _rope(kind: str, theta: float = 10000.0, **parameters) -> dict:
    return {"rope_type": kind, "rope_theta": theta, **parameters}


def _llama(name: str, tokenizer: str, dtype: str, rope: dict, **changes) -> Family:
    vocab_size = LLAMA3_VOCAB if tokenizer == "llama3" else LLAMA2_VOCAB
    family_fields = {key: changes.pop(key) for key in ("old_spelling", "beyond_lengths") if key in changes}
    overrides = _base(vocab_size, rope_parameters=rope) | changes
    return Family(name, hf.LlamaConfig, hf.LlamaForCausalLM, tokenizer, dtype, overrides, **family_fields)


FAMILIES = [
    _llama("llama", "llama2", "float32", _rope("default")),
    Family(
        "qwen2",
        hf.Qwen2Config,
        hf.Qwen2ForCausalLM,
        "qwen",
        "bfloat16",
        _base(QWEN_VOCAB, tie_word_embeddings=True, rope_parameters=_rope("default", 1e6), num_hidden_layers=3),
        old_spelling=True,
        # A window that must not be applied: use_sliding_window is false.
        old_keys={"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1},
    ),
    _llama("llama-linear", "llama2", "float16", _rope("linear", factor=4.0), old_spelling=True),
    _llama(
        "llama-dynamic",
        "llama2",
        "bfloat16",
        _rope("dynamic", factor=2.0),
        max_position_embeddings=128,
        beyond_lengths=(150,),
    ),
    _llama(
        "llama-llama3",
        "llama3",
        "float32",
        _rope(
            "llama3",
            500.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
        old_spelling=True,
        tie_word_embeddings=True,
        head_dim=16,
    ),
    _llama(
        "llama-yarn",
        "llama3",
        "bfloat16",
        # Both betas away from their defaults (32 and 1), and a ramp that both of them move.
        _rope("yarn", 100.0, factor=4.0, beta_fast=4.0, beta_slow=0.5, original_max_position_embeddings=64),
        head_dim=32,
        attention_bias=True,
        mlp_bias=True,
    ),
    Family(
        "mistral",
        hf.MistralConfig,
        hf.MistralForCausalLM,
        "mistral",
        "float32",
        _base(LLAMA2_VOCAB, head_dim=24, sliding_window=20, rope_parameters=_rope("default", 10000.0)),
        old_spelling=True,
    ),
    Family(
        "qwen3",
        hf.Qwen3Config,
        hf.Qwen3ForCausalLM,
        "qwen",
        "bfloat16",
        _base(QWEN_VOCAB, head_dim=32, rope_parameters=_rope("default", 1e6), tie_word_embeddings=True),
        max_shard_size="100KB",
    ),
    Family(
        "mixtral",
        hf.MixtralConfig,
        hf.MixtralForCausalLM,
        "mistral",
        "bfloat16",
        _base(
            LLAMA2_VOCAB,
            intermediate_size=40,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_parameters=_rope("default", 1e6),
        ),
        max_shard_size="150KB",
    ),
    Family(
        "qwen2-moe",
        hf.Qwen2MoeConfig,
        hf.Qwen2MoeForCausalLM,
        "qwen",
        "bfloat16",
        _base(
            QWEN_VOCAB,
            num_hidden_layers=3,
            intermediate_size=88,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=56,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[1],
            num_key_value_heads=4,
            rope_parameters=_rope("default", 1e6),
        ),
        old_spelling=True,
        old_keys={"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1},
    ),
    Family(
        "qwen3-moe",
        hf.Qwen3MoeConfig,
        hf.Qwen3MoeForCausalLM,
        "qwen",
        "float32",
        _base(
            QWEN_VOCAB,
            num_hidden_layers=3,
            head_dim=40,
            intermediate_size=72,
            moe_intermediate_size=24,
            num_experts=5,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            tie_word_embeddings=True,
            rope_parameters=_rope("default", 1e6),
        ),
    ),
    Family(
        "mistral-tekken",
        hf.MistralConfig,
        hf.MistralForCausalLM,
        "tekken",
        "bfloat16",
        _base(LLAMA3_VOCAB, head_dim=40, sliding_window=None, rope_parameters=_rope("default", 1e6)),
    ),
    Family(
        "gemma3",
        hf.Gemma3TextConfig,
        hf.Gemma3ForCausalLM,
        "llama2",
        "bfloat16",
        _base(
            LLAMA2_VOCAB,
            # The root of 72 is another number in every type.
            hidden_size=72,
            # The sixth layer is full, the others slide.
            num_hidden_layers=7,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=256,
            query_pre_attn_scalar=168,
            sliding_window=20,
            tie_word_embeddings=True,
            rope_parameters={"full_attention": _rope("default", 1e6), "sliding_attention": _rope("default", 1e4)},
        ),
        norm_mean=0.0,
        embedding_deviation=0.1,
    ),
    Family(
        "gemma3-linear",
        hf.Gemma3TextConfig,
        hf.Gemma3ForCausalLM,
        "llama2",
        "float16",
        _base(
            LLAMA2_VOCAB,
            num_hidden_layers=7,
            head_dim=24,
            query_pre_attn_scalar=32,
            sliding_window=20,
            layer_types=["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(7)],
            rope_parameters={
                "full_attention": _rope("linear", 1e4, factor=8.0),
                "sliding_attention": _rope("default", 200.0),
            },
        ),
        old_spelling=True,
        old_keys={"sliding_window_pattern": 3},
        norm_mean=0.0,
    ),
    Family(
        "gpt-oss",
        hf.GptOssConfig,
        hf.GptOssForCausalLM,
        "llama2",
        "bfloat16",
        _base(
            LLAMA2_VOCAB,
            head_dim=32,
            intermediate_size=24,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=20,
            # As llama-yarn's, but for bounds between dimensions.
            rope_parameters=_rope(
                "yarn",
                100.0,
                factor=4.0,
                beta_fast=4.0,
                beta_slow=0.5,
                truncate=False,
                original_max_position_embeddings=64,
            ),
        ),
        # OpenAI's own checkpoints are in it, and name layers as they are without.
        old_spelling=True,
        old_keys={"experts_per_token": 2, "initial_context_length": 64, "output_router_logits": False},
        gate_up_deviation=4.0,
    ),
]
