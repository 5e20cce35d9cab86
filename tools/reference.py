"""What transformers computes of a checkpoint in float32, for `vllm-apple verify --reference`: logits, the hidden state after every layer, and
PyTorch's own error at 16 bits.

    python -m venv .venv && .venv/bin/pip install -r tools/golden/requirements.txt
    .venv/bin/python tools/reference.py MODEL OUT.safetensors [--lengths 100 500] [--positions 32] [--dtypes bfloat16 float16]

MODEL is a directory or the id of a model on the Hugging Face Hub. Nothing of this repository computes here. The file holds for each prompt i:

    prompt.<i>.token_ids   [tokens]                        int32
    prompt.<i>.positions   [rows]                          int32, whose logits and hidden states follow: spread evenly, the last among them
    prompt.<i>.logits      [rows, vocabulary]              float32
    prompt.<i>.hidden      [layers + 1, rows, hidden]      float32: the embedding, then what each layer leaves; the last before the final norm
    prompt.<i>.greedy      [tokens]                        int32, that follow
    prompt.<i>.gaps        [tokens]                        float32: by how much the logit of each was larger than the next

and as metadata `reference`: JSON with `prompts` (name of each), `model`, `versions`, and `error`: for each 16-bit type the largest absolute
difference of PyTorch's logits at that type to these.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

FOX = "The quick brown fox jumps over the lazy dog. "
CODE = "def calculate_sum(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n\n\n"
STORY = (
    "Once upon a time there lived a brave knight in a castle by the sea. Every morning she climbed the highest tower and looked for ships. "
    "One day, in a storm, a small boat with a torn sail came round the rocks. "
)
INSTRUCTION = "Question: How do I change the tyre of a bicycle?\nAnswer in numbered steps, and say what I need.\n\n1. "
TEXTS = {"fox": FOX, "code": CODE, "story": STORY, "instruction": INSTRUCTION, "mixed": STORY + CODE + FOX + INSTRUCTION}
GREEDY = 10


def tokens(tokenizer, text: str, length: int) -> list[int]:
    """The beginning of the text, which is repeated as often as needed."""
    once = len(tokenizer(text, add_special_tokens=False).input_ids)
    # Repeated, a text may have fewer tokens each time.
    return tokenizer(text * (2 * length // once + 2)).input_ids[:length]


def rows(length: int, count: int) -> list[int]:
    """Positions spread evenly, with the first and the last."""
    if count >= length:
        return list(range(length))
    return sorted({round(i * (length - 1) / max(count - 1, 1)) for i in range(count)} | {length - 1})


@torch.no_grad()
def forward(model, token_ids: list[int], positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and hidden states of these positions. What the last layer leaves is taken before the final norm."""
    left = []
    # transformers gives the last state behind the norm.
    hook = model.model.norm.register_forward_hook(lambda _module, inputs, _output: left.append(inputs[0]))
    try:
        output = model(torch.tensor([token_ids]), use_cache=False, output_hidden_states=True)
    finally:
        hook.remove()
    states = [*output.hidden_states[:-1], left[0]]
    hidden = torch.stack([state[0, positions].float() for state in states])
    return output.logits[0, positions].float().contiguous(), hidden.contiguous()


@torch.no_grad()
def greedy(model, token_ids: list[int]) -> tuple[list[int], list[float]]:
    """The most likely tokens that follow, whatever they are, and how clear each was."""
    made: list[int] = []
    gaps: list[float] = []
    cache = None
    new = token_ids
    for _ in range(GREEDY):
        output = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        top = output.logits[0, -1].topk(2)
        cache, new = output.past_key_values, [top.indices[0].item()]
        made += new
        gaps.append((top.values[0] - top.values[1]).item())
    return made, gaps


def load(name: str, dtype: torch.dtype):
    # Eager: the plain formula of attention.
    return transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation="eager").eval()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("out", type=Path, metavar="OUT.safetensors")
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 500], help="tokens of each prompt (default: 100 500)")
    parser.add_argument("--positions", type=int, default=32, help="rows of logits of each prompt (default: 32)")
    parser.add_argument("--dtypes", nargs="*", default=["bfloat16", "float16"], choices=["bfloat16", "float16"])
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    model = load(arguments.model, torch.float32)
    tensors: dict[str, torch.Tensor] = {}
    prompts: list[tuple[str, list[int], list[int]]] = []
    for length in arguments.lengths:
        for name, text in TEXTS.items():
            token_ids = tokens(tokenizer, text, length)
            positions = rows(len(token_ids), arguments.positions)
            key = f"prompt.{len(prompts)}"
            prompts.append((f"{name}, {len(token_ids)} tokens", token_ids, positions))
            tensors[f"{key}.logits"], tensors[f"{key}.hidden"] = forward(model, token_ids, positions)
            made, gaps = greedy(model, token_ids)
            tensors[f"{key}.gaps"] = torch.tensor(gaps, dtype=torch.float32)
            for what, ids in [("token_ids", token_ids), ("positions", positions), ("greedy", made)]:
                tensors[f"{key}.{what}"] = torch.tensor(ids, dtype=torch.int32)
            print(prompts[-1][0], file=sys.stderr)
    errors = {}
    for dtype in arguments.dtypes:
        model = load(arguments.model, getattr(torch, dtype))
        largest = [
            (forward(model, token_ids, positions)[0] - tensors[f"prompt.{i}.logits"]).abs().max().item()
            for i, (_, token_ids, positions) in enumerate(prompts)
        ]
        # `max` passes over what is no number, and JSON has none.
        if all(map(math.isfinite, largest)):
            errors[dtype] = max(largest)
        print(f"{dtype}: PyTorch's own error is {torch.tensor(largest).max():.4g}", file=sys.stderr)
    about = {
        "model": Path(arguments.model).name,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompts": [name for name, _, _ in prompts],
        "error": errors,
    }
    save_file(tensors, arguments.out, metadata={"reference": json.dumps(about)})
    print(f"wrote {arguments.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
