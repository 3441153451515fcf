r"""Muon (Jordan et al. 2024): momentum, then the nearest orthogonal matrix.

A step $U V^\top$ of the momentum $M = U S V^\top$ moves a matrix equally along all its singular directions, where Adam's steps are ruled by
the few largest. Newton's iteration gets there with matrix products alone, which cost little beside a training step.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # of the original: all singular values end between 0.7 and 1.2, and fast
SMALLEST = 16  # rows and columns; smaller matrices (colours, coordinates) have too few directions to even out


class Muon(torch.optim.Optimizer):
    """For hidden matrices and convolutions; steps are scaled to be about as long as Adam's, so that one rate serves both."""

    def __init__(
        self, params: Iterable[dict[str, Any]], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.0
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(state["momentum"], group["momentum"]).flatten(1)  # Nesterov's
                parts = ahead.chunk(getattr(weight, "stacked", 1))
                update = torch.cat([orthogonalise(part) for part in parts])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update.view_as(weight), alpha=-0.2 * group["lr"] * max(parts[0].shape) ** 0.5)


def orthogonalise(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """About the orthogonal matrix nearest to this one."""
    a, b, c = QUINTIC
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def suits(module: nn.Module) -> bool:
    """Whether the module's weight is a matrix between hidden layers, large enough to have directions."""
    return isinstance(module, nn.Linear | nn.Conv2d) and min(module.weight.flatten(1).shape) >= SMALLEST
