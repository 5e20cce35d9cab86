"""Writes tests/golden/demo.json: greedy outputs of transformers in float32 that the Rust tests must repeat. Trains nothing.

    python goldens.py --model ../../models/demo --out ../../tests/golden/demo.json

Four families of prompts (a pangram over and over, Python, stories, an instruction after a long text), each cut to several
lengths, the sample conversation of the README, and one with tools. A prompt whose best two logits come too close is replaced by the next seed's.
"""

import argparse
import json
from pathlib import Path
from random import Random

import torch
import transformers

import calls
import documents
import programs
import words

LENGTHS = [32, 100, 200, 300, 475, 500, 1000, 2000, 4000]
NEW = 32
# Of the logits' standard deviation. An implementation may be off by 1e-3 of it, on each of the two logits.
MARGIN = 5e-3
# A story has many equally good words at each turn, so none is here: these replies must survive bf16 too.
SAFE = 0.1
CONVERSATION = [
    "Hello, I am Nora.",
    "Who are you?",
    "What is the capital of Norway?",
    "And of Japan?",
    "What is 17 + 25?",
    "Write a Python function that reverses a string.",
    "Tom lives in Rome and is 34 years old. Answer as JSON with the keys name, age and city.",
    "What is my name?",
]


def _tool(name: str, description: str, **parameters: str) -> dict:
    properties = {name: {"type": kind} for name, kind in parameters.items()}
    shape = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": shape}}


TOOLS = [
    _tool("get_weather", "Get the weather in a city.", city="string"),
    _tool("calculate", "Evaluates an arithmetic expression.", expression="string"),
    _tool("search", "Search the web.", query="string"),
]
# A question with the results of the calls that it takes.
WITH_TOOLS = [
    ("What is the weather in Oslo, and what is 1234 * 56?", ['{"temperature": 18, "condition": "sunny"}', "69104"]),
    ("And in Bergen?", ['{"temperature": 11, "condition": "rainy"}']),
    ("What is the capital of Norway?", []),
    ("Search for the Gokstad ship.", ['[{"title": "The ship", "text": "There are 32 oars in Sandefjord."}]']),
]


def fox(rng: Random, tokenizer, length: int) -> list[int]:
    return tokenizer(documents.FOX * 500)["input_ids"][:length]


def code(rng: Random, tokenizer, length: int) -> list[int]:
    text = "\n\n\n".join(p.source([p.values(rng)]) for p in (programs.program(rng) for _ in range(100)))
    return tokenizer(text)["input_ids"][:length]


def story(rng: Random, tokenizer, length: int) -> list[int]:
    return tokenizer("\n\n\n".join(documents.plain_story(rng) for _ in range(60)))["input_ids"][:length]


def instruction(rng: Random, tokenizer, length: int) -> list[int]:
    """A text as long as needed, then what to do: the answer shows at a glance whether the end of the prompt was read."""
    head = tokenizer("<|im_start|>user\n")["input_ids"]
    tail = tokenizer(f"\n\nRepeat this: {words.sentence(rng)}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    return head + story(rng, tokenizer, length - len(head) - len(tail)) + tail


FAMILIES = {"fox": fox, "code": code, "story": story, "instruction": instruction}


@torch.no_grad()
def greedy(model, ids: list[int], new: int, safe: float = MARGIN) -> tuple[list[int], float]:
    """Tokens up to an end token (included), and the least margin over the second best in deviations of the logits; ends early when unsafe."""
    ends, done, least = set(model.generation_config.eos_token_id), [], float("inf")
    out = model(input_ids=torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    while True:
        best = out.logits[0, -1].topk(2)
        done.append(best.indices[0].item())
        least = min(least, ((best.values[0] - best.values[1]) / out.logits[0, -1].std()).item())
        if len(done) == new or done[-1] in ends or least < safe:
            return done, least
        out = model(input_ids=torch.tensor([done[-1:]]), past_key_values=out.past_key_values, use_cache=True)


def case(model, tokenizer, family: str, length: int) -> dict:
    for seed in range(300):
        ids = FAMILIES[family](Random(f"golden/{family}/{length}/{seed}"), tokenizer, length)
        if len(ids) != length:
            continue
        tokens, least = greedy(model, ids, NEW)
        if least >= MARGIN:
            return {
                "family": family,
                "length": length,
                "prompt_token_ids": ids,
                "greedy": tokens,
                "text": tokenizer.decode(tokens),
                "least_margin": round(least, 4),
            }
        if family == "fox":
            raise SystemExit(f"fox at {length} tokens: margin {least}")
    raise SystemExit(f"{family} at {length} tokens: no prompt with a safe margin")


def conversation(model, tokenizer) -> list[dict]:
    """The turns of the sample conversation: prompt as the chat template renders it, and reply."""
    messages, turns = [], []
    for asked in CONVERSATION:
        messages.append({"role": "user", "content": asked})
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        tokens, least = greedy(model, ids, 200, SAFE)
        if least < SAFE:
            raise SystemExit(f"{asked!r}: margin {least}")
        reply = tokenizer.decode(tokens, skip_special_tokens=True)
        messages.append({"role": "assistant", "content": reply})
        turns.append(
            {
                "user": asked,
                "assistant": reply,
                "prompt_token_ids": ids,
                "greedy": tokens,
                "least_margin": round(least, 4),
            }
        )
    return turns


def with_tools(model, tokenizer) -> list[dict]:
    """A conversation in which tools are offered: every reply with the messages before it."""
    messages, replies = [], []
    for asked, results in WITH_TOOLS:
        messages.append({"role": "user", "content": asked})
        for called in [True, False] if results else [False]:
            ids = tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, return_dict=False)
            tokens, least = greedy(model, ids, 200, SAFE)
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            found = calls.read_calls(text)
            if least < SAFE or (found is not None) != called or called and len(found) != len(results):
                raise SystemExit(f"{asked!r}: margin {least}, {text}")
            made = [{"type": "function", "function": c} for c in found or []]
            message = {"role": "assistant", "content": None if called else text}
            if called:
                message["tool_calls"] = made
            replies.append(
                {
                    "messages": list(messages),
                    "prompt_token_ids": ids,
                    "greedy": tokens,
                    "reply": message,
                    "least_margin": round(least, 4),
                }
            )
            messages += [message] + [{"role": "tool", "content": r} for r in results if called]
    return replies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    cases = [case(model, tokenizer, family, length) for family in FAMILIES for length in LENGTHS]
    turns, replies = conversation(model, tokenizer), with_tools(model, tokenizer)
    lines = lambda items: ",\n".join("    " + json.dumps(item) for item in items)
    arguments.out.write_text(
        f'{{\n  "transformers": "{transformers.__version__}",\n  "cases": [\n{lines(cases)}\n  ],\n  "conversation": [\n{lines(turns)}\n  ],\n'
        f'  "tools": {json.dumps(TOOLS)},\n  "with_tools": [\n{lines(replies)}\n  ]\n}}\n'
    )
    for c in cases:
        print(c["family"], c["length"], c["least_margin"], repr(c["text"][:100]))
    for t in turns:
        print("user:", t["user"], "\nassistant:", t["assistant"], t["least_margin"])
    for r in replies:
        print(r["messages"][-1]["content"], "\n", r["reply"], r["least_margin"])


if __name__ == "__main__":
    main()
