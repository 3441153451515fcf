"""Which parameters learn by which rule, and how fast."""

from typing import Any

import torch
from torch import nn

from aquamam.training import muon
from aquamam.network.layers import ScaledLinear
from aquamam.training.config import TrainConfig


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Each matrix has one rate and one rule; only matrices decay: shrinking norms and biases helps nobody."""
    sharp = getattr(model, "output_layers", ())
    hidden: list[nn.Parameter] = []
    groups: list[dict[str, Any]] = [
        {"params": [], "rate": rate, "weight_decay": decay}
        for rate in (1.0, config.head_rate)
        for decay in (config.weight_decay, 0.0)
    ]
    groups.append({"params": [], "rate": config.scale_rate, "weight_decay": 0.0})
    for path, module in model.named_modules():
        output = path in sharp
        for name, parameter in module.named_parameters(recurse=False):
            if config.optimizer == "muon" and name == "weight" and not output and muon.suits(module):
                hidden.append(parameter)
            elif isinstance(module, ScaledLinear) and name == "log_scale":
                groups[-1]["params"].append(parameter)
            else:
                groups[2 * output + (parameter.ndim < 2)]["params"].append(parameter)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    groups = [group for group in groups if group["params"]]
    optimizers: list[torch.optim.Optimizer] = [
        kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    ]
    if hidden:
        optimizers.append(muon.Muon([{"params": hidden, "rate": 1.0}], config.lr, weight_decay=config.weight_decay))
    return optimizers
