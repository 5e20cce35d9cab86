"""Measures a checkpoint on held-out generated text with transformers: loss, exact answers by kind, stories that end. Trains nothing.

python evaluate.py --model DIRECTORY --out report.json
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from random import Random

import torch
import transformers

import calls
import chats
import documents
import stories
from task import Task, held_out

SAMPLES = [
    "Once upon a time there was a little fox named Pia.",
    "Hello! Who are you?",
    "Tell me a short story about a brave knight.",
    "Write a Python function that adds two numbers.",
    "Anna lives in Rome and is 34 years old. Answer as JSON with the keys name, age and city.",
]


# A task with the messages before it, all right, and the tools that are offered.
Asked = tuple[list[dict], list[dict], Task]


def questions(seed: int, number: int) -> list[Asked]:
    """Held-out questions without tools."""
    rng, found = Random(f"questions/{seed}"), []
    while len(found) < number:
        roll = rng.random()
        if roll < 0.9:
            chat = chats.conversation(rng, held=True)
        elif roll < 0.95:
            chat = documents.notes(rng, rng.randint(10, 120))
        else:
            chapters = {s.hero: s for s in (chats.draw_story(rng, True) for _ in range(rng.randint(4, 18)))}
            chat = documents.ask_book(rng, list(chapters.values()))
        picked = [t for t in chat.tasks if t[1].kind != "stories"]
        for index, task in rng.sample(picked, min(2, len(picked))):
            found.append((chat.messages[:index], chat.tools, task))
    return found[:number]


def with_tools(seed: int, number: int) -> list[Asked]:
    """Held-out questions where tools are offered, of names that are held out, too: calls, and answers from results."""
    rng, found = Random(f"tools/{seed}"), []
    while len(found) < number:
        chat = calls.conversation(rng, held=True)
        picked = [t for t in chat.tasks if t[1].kind.startswith(("call: ", "answer: "))]
        for index, task in rng.sample(picked, min(2, len(picked))):
            found.append((chat.messages[:index], chat.tools, task))
    return found[:number]


# What a batch holds at most, in characters and in prompts.
BATCH_TEXT, BATCH = 1_000_000, 512


def generate(model, tokenizer, prompts: list[str], new: int) -> list[tuple[str, bool]]:
    """Greedy continuations, and whether each ended with an end token."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    done: list = [None] * len(prompts)
    ends = set(model.generation_config.eos_token_id)
    while order:
        # The longest ones first: others fit where these did.
        size = max(1, min(BATCH, BATCH_TEXT // len(prompts[order[-1]])))
        part, order = order[-size:], order[:-size]
        inputs = tokenizer(
            [prompts[i] for i in part],
            return_tensors="pt",
            padding=True,
            padding_side="left",
            return_token_type_ids=False,
        ).to(model.device)
        out = model.generate(**inputs, max_new_tokens=new, do_sample=False, temperature=None, top_p=None, top_k=None)[
            :, inputs["input_ids"].shape[1] :
        ].tolist()
        for i, ids in zip(part, out):
            stop = next((n for n, t in enumerate(ids) if t in ends), None)
            done[i] = (tokenizer.decode(ids[:stop] if stop is not None else ids), stop is not None)
    return done


def chat_prompt(tokenizer, messages: list[dict], tools: list[dict] | None = None) -> str:
    return tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False, add_generation_prompt=True)


def answers(model, tokenizer, candidates: list[Asked], number: int) -> dict:
    """How many of the first questions that leave room for an answer are answered right, by kind."""
    prompts = []
    for messages, tools, task in candidates:
        prompt = chat_prompt(tokenizer, messages, tools)
        if len(prompts) < number and len(tokenizer(prompt)["input_ids"]) < 3900:
            prompts.append((prompt, (messages, tools, task)))
    given = generate(model, tokenizer, [p for p, _ in prompts], 200)
    kinds, wrong = defaultdict(lambda: [0, 0]), []
    for (_, (messages, tools, task)), (text, ended) in zip(prompts, given):
        right = ended and task.right(text)
        kinds[task.kind][0] += right
        kinds[task.kind][1] += 1
        if not right:
            wrong.append(
                {
                    "kind": task.kind,
                    "asked": messages[-1]["content"][-300:],
                    "turns": len(messages),
                    "tools": tools,
                    "system": messages[0]["content"] if messages[0]["role"] == "system" else None,
                    "wanted": task.answer,
                    "got": text[:400],
                }
            )
    return {
        "asked": len(prompts),
        "right": sum(k[0] for k in kinds.values()),
        "kinds": {k: v for k, v in sorted(kinds.items())},
        "wrong": wrong,
    }


def told_stories(model, tokenizer, seed: int, number: int = 100) -> dict:
    """Half are plain beginnings, half are requests in a chat."""
    rng, prompts = Random(f"stories/{seed}"), []
    while len(prompts) < number:
        s = stories.story(rng)
        if not held_out(s.key):
            continue
        if len(prompts) % 2:
            prompts.append(chat_prompt(tokenizer, [{"role": "user", "content": chats.requested_story(rng)[1]}]))
        else:
            prompts.append(s.paragraphs[0][0])
    told = generate(model, tokenizer, prompts, 500)
    return {"asked": number, "ended": sum(e for _, e in told), "example": prompts[0] + told[0][0]}


@torch.no_grad()
def losses(model, tokenizer, seed: int) -> dict:
    """Mean loss of a token by kind of document; each document alone, from its first token on."""
    rng = Random(f"text/{seed}")
    makers = {
        "conversations": lambda: chats.conversation(rng, held=True).text(),
        "stories": lambda: documents.plain_story(rng),
        "programs": lambda: documents.programs.document(rng),
        "books with questions": lambda: documents.book(rng).text(),
        "notes with questions": lambda: documents.notes(rng).text(),
        "repeated passages": lambda: documents.repeated(rng, 8000),
    }
    result, whole, count = {}, 0.0, 0
    for name, make in makers.items():
        total, n = 0.0, 0
        for _ in range(100 if name in ("conversations", "stories", "programs") else 20):
            ids = torch.tensor([tokenizer(make())["input_ids"][:4095] + [tokenizer.pad_token_id]], device=model.device)
            logits = model(input_ids=ids[:, :-1]).logits[0].float()
            total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            n += ids.shape[1] - 1
        result[name] = {"loss": total / n, "perplexity": math.exp(total / n), "tokens": n}
        whole, count = whole + total, count + n
    result["all"] = {"loss": whole / count, "perplexity": math.exp(whole / count), "tokens": count}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--with-tools", type=int, default=2000, help="questions where tools are offered")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    model = (
        transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
        .to(arguments.device)
        .eval()
    )
    report = {
        "losses": losses(model, tokenizer, arguments.seed),
        "answers": answers(model, tokenizer, questions(arguments.seed, 2 * arguments.questions), arguments.questions),
        "tools": answers(model, tokenizer, with_tools(arguments.seed, arguments.with_tools), arguments.with_tools),
        "stories": told_stories(model, tokenizer, arguments.seed),
    }
    prompts = [SAMPLES[0]] + [chat_prompt(tokenizer, [{"role": "user", "content": s}]) for s in SAMPLES[1:]]
    report["samples"] = [
        {"prompt": s, "text": text, "ended": ended}
        for s, (text, ended) in zip(SAMPLES, generate(model, tokenizer, prompts, 400))
    ]
    arguments.out.write_text(json.dumps(report, indent=1, ensure_ascii=False))
    print("losses", json.dumps(report["losses"]))
    for a in (report["answers"], report["tools"]):
        print("exact", a["right"], "of", a["asked"], {k: f"{r}/{n}" for k, (r, n) in a["kinds"].items()})
    print("stories ended", report["stories"]["ended"], "of", report["stories"]["asked"])


if __name__ == "__main__":
    main()
