"""Heads that know that bins are neighbours, while they learn: the rows of a head are sums over levels of ever coarser
rows, interpolated linearly.

It is a change of parameters only. A step along a coarse row moves all bins near it, so that neighbours learn from one
another. `folded` gives the plain layers that checkpoints hold.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from aquamam.network.model import AQuaMaM, RotationModel

COARSEST = 4  # rows a chart


class Pyramid(nn.Module):
    """A head's weight or bias as a sum of levels: of all rows, of half as many, and so on, for each chart by itself."""

    def __init__(self, charts: int, bins: int):
        super().__init__()
        self.charts, self.sizes = charts, [bins]
        while self.sizes[-1] > COARSEST:
            self.sizes.append(-(-self.sizes[-1] // 2))

    def forward(self, *levels: Tensor) -> Float[Tensor, "tokens *dim"]:
        bins, total = self.sizes[0], torch.zeros(())
        for size, level in zip(self.sizes, levels):
            rows = level.reshape(self.charts, size, -1).transpose(1, 2)
            total = total + F.interpolate(rows, bins, mode="linear", align_corners=False)
        return total.transpose(1, 2).reshape(self.charts * bins, *levels[0].shape[1:])

    def right_inverse(self, whole: Float[Tensor, "tokens *dim"]) -> tuple[Tensor, ...]:
        """Everything in the finest level: a head that has learnt goes on from where it is."""
        coarser = [whole.new_zeros((self.charts * size, *whole.shape[1:])) for size in self.sizes[1:]]
        return (whole, *coarser)


def add_pyramids(model: RotationModel, *, fresh: bool) -> None:
    """Give the heads of an AQuaMaM their levels; `fresh` ones start at random on every level. Others have none."""
    if not isinstance(model, AQuaMaM):
        return
    for name in AQuaMaM.output_layers:
        head = getattr(model, name, None)
        if head is None:
            continue
        charts = model.cells.chart.count if name == "first_head" else 1
        for part in ("weight", "bias"):
            parametrize.register_parametrization(head, part, Pyramid(charts, model.config.bins))
            for level in head.parametrizations[part].parameters() if fresh else ():
                nn.init.normal_(level, std=head.in_features**-0.5 / 3 if part == "weight" else 0.0)


def folded(model: RotationModel) -> RotationModel:
    """The model with plain heads; itself if it has no others."""
    if not isinstance(model, AQuaMaM) or not parametrize.is_parametrized(model.head):
        return model
    plain = type(model)(model.config).to(model.start.device).train(model.training)
    state = {name: value for name, value in model.state_dict().items() if ".parametrizations." not in name}
    for name in AQuaMaM.output_layers:
        if (head := getattr(model, name, None)) is not None:
            state |= {f"{name}.weight": head.weight, f"{name}.bias": head.bias}
    plain.load_state_dict(state)
    plain.calibration = model.calibration
    plain.learn(**model.info)
    return plain
