"""torch's Muon for many matrices of few shapes: those of a shape are orthogonalised together. Knows no model.

torch.optim.Muon goes from matrix to matrix, and thousands of kernels too small for a GPU are a good part of a step of this
model. `python muon.py` proves that both take the same steps.
"""

import torch

# As in torch.optim.Muon.
COEFFICIENTS, ITERATIONS, EPSILON = (3.4445, -4.7750, 2.0315), 5, 1e-7


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised by Newton-Schulz in bf16, with a learning rate that fits AdamW's."""

    def __init__(self, params, lr: float, weight_decay: float, momentum: float):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.Tensor]] = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for shape, params in shapes.items():
                grads = torch.stack([p.grad for p in params])
                state = self.state[params[0]]
                if not state:
                    state["momentum"] = torch.zeros_like(grads)
                state["momentum"].lerp_(grads, 1 - group["momentum"])
                update = orthogonal(grads.lerp(state["momentum"], group["momentum"]))
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                torch._foreach_add_(params, list(update.to(params[0].dtype)), alpha=-rate)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest matrices, about, whose singular values are all about 1."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.to(torch.bfloat16)
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def main() -> None:
    torch.manual_seed(1)
    start = [torch.randn(shape) for shape in [(8, 8), (4, 8), (20, 8), (8, 20)] * 3]
    ours, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    optimizers = [
        Muon(ours, lr=3e-3, weight_decay=0.1, momentum=0.95),
        torch.optim.Muon(theirs, lr=3e-3, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(20):
        for p, q in zip(ours, theirs):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    worst = max((p - q).abs().max().item() for p, q in zip(ours, theirs))
    moved = max((p - q).abs().max().item() for p, q in zip(ours, start))
    # Updates are bf16, 20 of them, each of at most 3e-3 * 0.2 * sqrt(20).
    assert worst < 20 * 3e-3 * 0.2 * 20**0.5 * 2**-7 < moved / 10, (worst, moved)
    print(f"moved by up to {moved:.4f}, apart by up to {worst:.6f}")


if __name__ == "__main__":
    main()
