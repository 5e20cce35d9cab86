"""The demo model's shape, and a plain Qwen2 in torch with transformers' parameter names for training. Knows no data."""

import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

SHAPE = dict(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=640,
    num_hidden_layers=7,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
THETA = 10_000.0
HEAD = 64


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SHAPE["hidden_size"]))

    def forward(self, x):
        x32 = x.float()
        return self.weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + SHAPE["rms_norm_eps"]))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, kv = SHAPE["hidden_size"], SHAPE["num_key_value_heads"] * HEAD
        self.q_proj, self.o_proj = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = nn.Linear(hidden, kv), nn.Linear(hidden, kv)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        split = lambda y: y.view(rows, length, -1, HEAD).transpose(1, 2)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


def _rotate(x, cos, sin):
    left, right = x.float().chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen2(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(SHAPE["vocab_size"], SHAPE["hidden_size"])
        self.layers = nn.ModuleList(Layer() for _ in range(SHAPE["num_hidden_layers"]))
        self.norm = Norm()
        angles = torch.outer(
            torch.arange(SHAPE["max_position_embeddings"]).double(),
            THETA ** -(torch.arange(0, HEAD, 2).double() / HEAD),
        )
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                # Smaller where a layer's output joins the residual stream, so that its scale does not grow with depth.
                nn.init.normal_(
                    p,
                    std=0.02 / (2 * SHAPE["num_hidden_layers"]) ** 0.5
                    if name.endswith(("o_proj.weight", "down_proj.weight"))
                    else 0.02,
                )
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids):
        x, length = self.embed_tokens(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return F.linear(self.norm(x), self.embed_tokens.weight)


def save(model: Qwen2, tokenizer: str, out) -> None:
    """Writes the checkpoint as transformers saves it, in bf16, and proves that transformers computes the same logits."""
    import transformers

    config = transformers.Qwen2Config(
        **SHAPE,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        bos_token_id=None,
        eos_token_id=4095,
        pad_token_id=4093,
    )
    theirs = transformers.Qwen2ForCausalLM(config).float()
    state = {"model." + k: v.detach().cpu().to(torch.bfloat16).float() for k, v in model.state_dict().items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    theirs.tie_weights()
    ours = Qwen2()
    ours.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
    ids = torch.arange(96).view(1, -1) * 41 % SHAPE["vocab_size"]
    with torch.no_grad():
        worst = (ours(ids) - theirs(ids).logits).abs().max().item()
    assert worst < 1e-3, f"transformers computes other logits: {worst}"
    theirs.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=0.3, top_p=0.9, top_k=40, eos_token_id=[4095, 4093], pad_token_id=4093
    )
    theirs.to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(Path(tokenizer) / name, Path(out) / name)
