"""Trains the demo model on packed rows and saves it as transformers does. Knows no text.

    python train.py --data DIRECTORY --tokenizer DIRECTORY --out DIRECTORY

Writes losses.json (the curve), state.pt (float32, now and then) and demo/ (the bf16 checkpoint). The same seed gives the
same batches; on a GPU the sums inside kernels may come in another order, so a second run gives a model as good, not the
same bits.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from model import Qwen2, save
from muon import Muon

IGNORE = -1
END, START, STOP = 4093, 4094, 4095


class Rows:
    """Endless shuffled batches of short and of long rows, each batch of one kind, about the same number of tokens in each."""

    def __init__(self, directory: Path, tokens: int, device: str, seed: int):
        self.rng = np.random.default_rng(seed)
        self.parts = []
        for name in ("short", "long"):
            rows = torch.from_numpy(np.load(directory / f"{name}.npy"))
            held, rows = rows[: max(1, len(rows) // 200)], rows[max(1, len(rows) // 200) :]
            self.parts.append(
                {
                    "rows": rows.to(device),
                    "held": held.to(device),
                    "batch": max(1, tokens // rows.shape[1]),
                    "order": [],
                    "name": name,
                }
            )
        sizes = np.array([p["rows"].numel() for p in self.parts], dtype=float)
        self.share = sizes / sizes.sum()

    def next(self) -> torch.Tensor:
        part = self.parts[self.rng.choice(len(self.parts), p=self.share)]
        if len(part["order"]) < part["batch"]:
            part["order"] = self.rng.permutation(len(part["rows"]))
        picked, part["order"] = part["order"][: part["batch"]], part["order"][part["batch"] :]
        return part["rows"][torch.from_numpy(picked).to(part["rows"].device)]


class Losses(torch.nn.Module):
    """The loss of every token but the first of a row. Compiled as one, so that the logits are read and written as seldom as can be."""

    def __init__(self, model: Qwen2):
        super().__init__()
        self.model = model

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast(rows.device.type, torch.bfloat16):
            logits = self.model(rows[:, :-1].clamp(min=0))
        following = rows[:, 1:].flatten()
        return F.cross_entropy(logits.float().flatten(0, 1), following, ignore_index=IGNORE, reduction="none")


def loss_of(losses, rows: torch.Tensor, asked: float = 1.0) -> torch.Tensor:
    """Mean loss of a token; tokens of system and user turns count `asked`, since nobody can foresee a question."""
    rows = rows.long()
    weight = torch.where(questions(rows)[:, 1:], asked, 1.0).flatten() * (rows[:, 1:] != IGNORE).flatten()
    return (losses(rows) * weight).sum() / weight.sum()


def questions(rows: torch.Tensor) -> torch.Tensor:
    """True for the tokens between <|im_start|> of a role that is not the assistant's and its <|im_end|>."""
    following = F.pad(rows[:, 1:], (0, 1), value=IGNORE)
    opens = (rows == START) & (following != ASSISTANT)
    event = opens | (rows == START) | (rows == STOP) | (rows == END)
    positions = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    last = torch.where(event, positions, -1).cummax(1).values
    return torch.where(last >= 0, opens.gather(1, last.clamp(min=0)), False)


@torch.no_grad()
def held_loss(losses, rows: Rows) -> dict:
    """Loss on rows kept from training, by their kind."""
    result = {}
    for part in rows.parts:
        size = max(1, min(part["batch"], len(part["held"])))
        batches = [part["held"][i : i + size] for i in range(0, len(part["held"]) - size + 1, size)][:8]
        result[part["name"]] = sum(loss_of(losses, b).item() for b in batches) / len(batches)
    return result


def rate(step: int, done: float, peak: float) -> float:
    """Linear warm-up over 500 steps, and a cosine down to a hundredth when all is done."""
    return peak * min((step + 1) / 500, 1.0) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens of one step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1e9, help="take fewer steps where they would take longer")
    arguments = parser.parse_args()
    global ASSISTANT
    ASSISTANT = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json")).encode("assistant").ids[0]
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(arguments.data, arguments.tokens, arguments.device, arguments.seed)
    model = Qwen2().to(arguments.device)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n != "embed_tokens.weight"]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or n == "embed_tokens.weight"]
    # Muon for the layers' matrices, AdamW for the rest; its updates are scaled so that one learning rate serves both.
    optimizers = [
        Muon(matrices, lr=arguments.rate, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(others, lr=arguments.rate, weight_decay=0.0, betas=(0.9, 0.95)),
    ]
    losses = Losses(model)
    fast = torch.compile(losses, dynamic=False) if arguments.device == "cuda" else losses
    curve, started, running, counted = [], time.time(), 0.0, 0
    for step in range(arguments.steps):
        done = max(step / arguments.steps, (time.time() - started) / arguments.seconds)
        is_last = step + 1 == arguments.steps or done >= 1.0
        loss = loss_of(fast, rows.next(), asked=0.2)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(step, done, arguments.rate)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        running, counted = running + loss.detach(), counted + 1
        if (step + 1) % 100 == 0 or is_last:
            held = held_loss(fast, rows) if (step + 1) % 500 == 0 or is_last else None
            seconds = time.time() - started
            curve.append(
                {
                    "step": step + 1,
                    "tokens": (step + 1) * arguments.tokens,
                    "train": float(running) / counted,
                    "held": held,
                    "seconds": round(seconds, 1),
                }
            )
            running, counted = 0.0, 0
            if held or step < 1000:
                print(json.dumps(curve[-1]), flush=True)
            (arguments.out / "losses.json").write_text(json.dumps(curve))
            if held:
                torch.save(model.state_dict(), arguments.out / "state.pt")
        if is_last:
            break
    save(model.cpu(), str(arguments.tokenizer), arguments.out / "demo")
    print("saved", arguments.out / "demo", flush=True)


if __name__ == "__main__":
    main()
