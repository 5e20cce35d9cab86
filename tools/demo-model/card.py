"""Writes models/demo/README.md and its picture from what training and evaluation measured. Measures nothing itself.

python card.py --model ../../models/demo --losses losses.json --report report.json
"""

import argparse
import json
from pathlib import Path

INTRODUCTION = """# The demo model

A language model of {millions:.1f} million parameters that comes with vllm-apple, so that the first command answers with words and the tests
have a model whose wrong tokens show. Qwen2 architecture: {layers} layers, hidden size {hidden}, {heads} query and {kv} key-value heads of size 64,
QKV bias, tied embeddings, intermediate size {inner}, context 4,096, {vocab} entries of byte-level BPE, ChatML template, bf16.
All files together: {mib:.1f} MiB.

It was trained from nothing by `tools/demo-model` on text that a grammar-driven script of this project generates: short stories,
questions and answers, small sums, counting, sorting, spelling, small Python functions, JSON answers, chats with a system message,
calls of tools, books and notes of up to 4,096 tokens with questions about them, and repeated passages. No outside text was used.

## Training

{unique} distinct tokens of generated text; {trained:.2f} billion tokens seen in {steps} steps of {batch:,} tokens, {minutes:.0f} minutes on {machine}.

![Loss over training](losses.svg)

## Evaluation

Text and questions come from other seeds. Besides, one key in forty is never trained on, and only such are asked here: the two
numbers of a sum, a story's hero, thing and place, a word and the way to ask for it. Small talk and what a user tells of
themself are fixed phrases, so there other seeds are all. Weights as shipped (bf16), computed in float32 with transformers, greedy.

| held-out text, each document from its first token | tokens | loss per token | perplexity |
|---|---|---|---|
{losses}

**{right} of {asked} questions ({percent:.1f}%) are answered exactly**, letter by letter with the end token where it belongs:

| kind | exact |
|---|---|
{kinds}

{ended} of {told} stories end by themselves with an end token within 500 tokens.

### Tools

Tools are offered as in `tools` of a request. **{called} of {calls} calls ({call_percent:.1f}%) are right**: the names and arguments of all, as
JSON values, and no other text. **{replied} of {replies} answers from results ({reply_percent:.1f}%) are**, letter by letter, and
{plain_right} of {plain} to questions that none of the tools is for. In training a tool has one of many names, descriptions, names of parameters and forms of a schema; these functions' names were
never trained on, nor were these questions (a city, the numbers of a sum or a topic, and the way to ask). "Other tools" are the time, the date, timers, messages,
lights, translations, prices, dice and notes; "several calls" are two or three in one turn.

| kind | calls | answers |
|---|---|---|
{tools}

## Five samples

Greedy; the first is a plain beginning, the others are chat turns.

{samples}
## What it cannot do

- It knows its small world and nothing else: about {capitals} capitals, {animals} animals, some colours, opposites, days and months, and a few
  sentences of science. Other questions get a polite refusal, and sometimes a confident wrong answer.
- Sums and differences up to 99, times tables up to 12. Nothing larger, no fractions, no reasoning in steps.
- About {functions} kinds of small Python functions. It cannot program.
- Simple English only. Stories follow eleven plots, and without sampling they resemble each other.
- One line among a hundred, or a chapter by its number, is found three times in four ("notes" and "questions about a book" above).
- Of tools it knows kinds, not the language of their descriptions: a tool for something else is passed over or taken for another, and among several
  tools that calculate it may take the wrong one. Arguments are strings, numbers and booleans, and no list or object. The text of a result that
  is unlike those of training may be garbled. Where a calculator is offered, it is called even for sums that the model knows.
- A call that `tool_choice` requires is held to a form that this model was not trained on: it keeps to the tool's schema, and its arguments
  need not fit the question, nor need it end before `max_tokens`.
- It is no measure of how well vllm-apple serves larger models, only of whether it computes them right.
"""


def picture(curve: list[dict]) -> str:
    """The loss curve as SVG, without fonts of its own: step on x, loss on y."""
    width, height, left, right, bottom, top = 720, 330, 50, 30, 40, 26
    last, high = curve[-1]["step"], 2.0
    x = lambda step: left + (width - left - right) * step / last
    y = lambda loss: top + (height - top - bottom) * (1 - min(loss, high) / high)
    line = lambda points, colour: (
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in points)}"/>'
    )
    text = lambda px, py, what, anchor="middle", colour="#444": (
        f'<text x="{px:.0f}" y="{py:.0f}" font-family="sans-serif" font-size="12" text-anchor="{anchor}" fill="{colour}">{what}</text>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for k in range(9):
        loss = high * k / 8
        parts += [
            f'<line x1="{left}" x2="{width - right}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>',
            text(left - 6, y(loss) + 4, f"{loss:.2f}", "end"),
        ]
    for k in range(7):
        parts.append(text(x(last * k / 6), height - bottom + 16, f"{last * k // 6:,}"))
    held = [c for c in curve if c["held"]]
    series = [
        ("training, questions counted a fifth", "#999", [(c["step"], c["train"]) for c in curve]),
        ("held-out, short rows", "#0060c0", [(c["step"], c["held"]["short"]) for c in held]),
        ("held-out, rows of 4,096 tokens", "#c04000", [(c["step"], c["held"]["long"]) for c in held]),
    ]
    for n, (name, colour, points) in enumerate(series):
        parts += [line(points, colour), text(width - right - 8, top + 16 + 16 * n, name, "end", colour)]
    parts += [text(width / 2, height - 6, "step"), text(left - 6, top - 12, "loss", "end"), "</svg>"]
    return "\n".join(parts) + "\n"


def main() -> None:
    import programs
    import world

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--losses", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--unique", default="313 million", help="as generate.py printed it")
    parser.add_argument("--machine", default="one H100", help="where it was trained")
    arguments = parser.parse_args()
    curve, report = json.loads(arguments.losses.read_text()), json.loads(arguments.report.read_text())
    config = json.loads((arguments.model / "config.json").read_text())
    (arguments.model / "losses.svg").write_text(picture(curve))
    answers = report["answers"]
    # "call: weather" and "answer: weather" are a row.
    tools = report["tools"]["kinds"]
    total = lambda what: [sum(pair[k] for name, pair in tools.items() if name.startswith(what)) for k in (0, 1)]
    (called, calls), (answered, asked) = total("call: "), total("answer: ")
    (plain_right, plain) = total("answer: no ")
    replied, replies = answered - plain_right, asked - plain
    cell = lambda pair: f"{pair[0]} of {pair[1]}" if pair else "-"
    rows = sorted({name.split(": ")[1] for name in tools})
    table = "\n".join(f"| {r} | {cell(tools.get('call: ' + r))} | {cell(tools.get('answer: ' + r))} |" for r in rows)
    kinds = "\n".join(f"| {kind} | {right} of {n} |" for kind, (right, n) in sorted(answers["kinds"].items()))
    losses = "\n".join(
        f"| {name} | {v['tokens']:,} | {v['loss']:.3f} | {v['perplexity']:.3f} |"
        for name, v in report["losses"].items()
    )
    samples = "\n".join(
        "> **"
        + s["prompt"]
        + "**\n>\n"
        + "\n".join("> " + line if line else ">" for line in s["text"].strip().split("\n"))
        + "\n"
        for s in report["samples"]
    )
    size = sum(f.stat().st_size for f in arguments.model.iterdir() if f.name != "README.md")
    weights = (arguments.model / "model.safetensors").stat().st_size
    text = INTRODUCTION.format(
        millions=weights / 2e6,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv=config["num_key_value_heads"],
        inner=config["intermediate_size"],
        vocab=config["vocab_size"],
        mib=size / 2**20,
        unique=arguments.unique,
        machine=arguments.machine,
        trained=curve[-1]["tokens"] / 1e9,
        steps=curve[-1]["step"],
        batch=curve[-1]["tokens"] // curve[-1]["step"],
        minutes=curve[-1]["seconds"] / 60,
        losses=losses,
        right=answers["right"],
        asked=answers["asked"],
        percent=100 * answers["right"] / answers["asked"],
        kinds=kinds,
        called=called,
        calls=calls,
        call_percent=100 * called / calls,
        replied=replied,
        replies=replies,
        reply_percent=100 * replied / replies,
        plain_right=plain_right,
        plain=plain,
        tools=table,
        ended=report["stories"]["ended"],
        told=report["stories"]["asked"],
        samples=samples,
        capitals=len(world.CAPITALS),
        animals=len(world.ANIMALS),
        functions=len(programs.FUNCTIONS),
    )
    (arguments.model / "README.md").write_text(text)


if __name__ == "__main__":
    main()
