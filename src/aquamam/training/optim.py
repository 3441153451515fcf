r"""Which parameters learn by which rule and how fast, and Muon (Jordan et al. 2024): momentum, then the nearest
orthogonal matrix.

A step $U V^\top$ of the momentum $M = U S V^\top$ moves a matrix equally along all its singular directions, where
Adam's steps are ruled by the few largest. Newton's iteration gets there with matrix products alone, which cost little
beside a training step.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aquamam.network.model import RotationModel
from aquamam.training.config import TrainConfig

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # of the original: all singular values end between 0.7 and 1.2, and fast
SMALLEST = 16  # rows and columns; smaller matrices (colours, coordinates) have too few directions to even out


class Muon(torch.optim.Optimizer):
    """For hidden matrices and convolutions; steps are scaled to be about as long as Adam's, so that one rate serves
    both."""

    def __init__(
        self, params: Iterable[dict[str, Any]], lr: float, weight_decay: float, precision: torch.dtype = torch.float32
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.precision = precision

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
                ahead = weight.grad.lerp(state["momentum"], MOMENTUM).flatten(1)  # Nesterov's
                parts = ahead.chunk(getattr(weight, "stacked", 1))
                update = torch.cat([orthogonalise(part, self.precision) for part in parts])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update.view_as(weight), alpha=-0.2 * group["lr"] * max(parts[0].shape) ** 0.5)


def orthogonalise(matrix: Float[Tensor, "rows columns"], precision: torch.dtype) -> Float[Tensor, "rows columns"]:
    """About the orthogonal matrix nearest to this one, by products in this precision: the iteration mends errors."""
    a, b, c = QUINTIC
    x = (matrix / (matrix.norm() + 1e-7)).to(precision)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


def suits_muon(module: nn.Module) -> bool:
    """Whether the module's weight is a matrix between hidden layers, large enough to have directions."""
    return isinstance(module, nn.Linear | nn.Conv2d) and min(module.weight.flatten(1).shape) >= SMALLEST


def precision_on(device: torch.device, config: TrainConfig) -> torch.dtype:
    """In what training multiplies: half as many bytes where the device has instructions for them (AMX, AVX-512)."""
    if config.precision != "auto":
        return getattr(torch, config.precision)
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        told = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        native = device.type == "cpu" and any(told.get(name) for name in ("avx512_bf16", "amx_bf16"))
    return torch.bfloat16 if native else torch.float32


def make_optimizers(model: RotationModel, config: TrainConfig, precision: torch.dtype) -> list[torch.optim.Optimizer]:
    """Each matrix has one rate and one rule; only matrices decay: shrinking norms and biases helps nobody."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    hidden: list[nn.Parameter] = []
    for path, module in model.named_modules():
        output = path.split(".")[0] in model.output_layers
        for name, parameter in module.named_parameters(recurse=False):
            if config.optimizer == "muon" and name == "weight" and not output and suits_muon(module):
                hidden.append(parameter)
                continue
            rate = getattr(parameter, "rate", config.head_rate if output else 1.0)
            decay = config.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    told = [{"params": params, "rate": rate, "weight_decay": decay} for (rate, decay), params in groups.items()]
    optimizers: list[torch.optim.Optimizer] = [kind(told, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)]
    if hidden:
        optimizers.append(Muon([{"params": hidden, "rate": 1.0}], config.lr, config.weight_decay, precision))
    return optimizers


def optimizer_tensors(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The optimisers' state by the names of parameters, whichever optimiser has them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}.{part}": value  # type: ignore[index]
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for part, value in state.items()
    }


def restore_optimizers(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], tensors: dict[str, Tensor]
) -> None:
    """The inverse of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    homes = {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for key, value in tensors.items():
        name, _, part = key.rpartition(".")
        parameter = parameters[name]
        # fused steps count where their parameter is; a copy, since the file's own tensors keep the file mapped
        homes[parameter].state[parameter][part] = value.to(parameter.device, copy=True)
