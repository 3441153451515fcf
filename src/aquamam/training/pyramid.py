"""Heads that know that bins are neighbours, and how sure they may be, while they learn: the rows of a head are sums
over levels of ever coarser rows, interpolated linearly, times one number.

It is a change of parameters only. A step along a coarse row moves all bins near it, so that neighbours learn from one
another, and a step of the factor sharpens all bins at once, which thousands of rows reach too late one by one.
`folded` gives the plain layers that checkpoints hold.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from aquamam.network.model import AQuaMaM, RotationModel

COARSEST = 4  # rows a chart
SCALE_RATE = 30.0  # the logarithm of the factor learns so many times as fast as the network


class Pyramid(nn.Module):
    """A head's weight or bias as a sum of levels, of all rows, of half as many, and so on, for each chart by itself,
    times the exponential of the last parameter."""

    def __init__(self, charts: int, bins: int):
        super().__init__()
        self.charts, self.sizes = charts, [bins]
        while self.sizes[-1] > COARSEST:
            self.sizes.append(-(-self.sizes[-1] // 2))

    def forward(self, *parameters: Tensor) -> Float[Tensor, "tokens *dim"]:
        *levels, log_scale = parameters
        rows = [level.reshape(self.charts, size, -1).transpose(1, 2) for size, level in zip(self.sizes, levels)]
        total = rows.pop()
        while rows:
            finer = rows.pop()
            total = finer + F.interpolate(total, finer.shape[-1], mode="linear")
        return log_scale.exp() * total.transpose(1, 2).reshape(-1, *levels[0].shape[1:])

    def right_inverse(self, whole: Float[Tensor, "tokens *dim"]) -> tuple[Tensor, ...]:
        """Everything in the finest level: a head that has learnt goes on from where it is."""
        coarser = [whole.new_zeros((self.charts * size, *whole.shape[1:])) for size in self.sizes[1:]]
        return (whole, *coarser, whole.new_zeros(1))


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
            *levels, log_scale = head.parametrizations[part].parameters()
            log_scale.rate = SCALE_RATE  # type: ignore[attr-defined]
            for level in levels if fresh else ():
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
