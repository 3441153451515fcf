r"""Where a part lies in its crop and how large it is: three numbers, each a token of bins after those of the
rotation.

A window is (a_x, a_y, b): the projection of the part's centre from the crop's middle in shares of its side, x right
and y down, and the logarithm of the apparent radius, in shares of the side, over a nominal one. Bins are equal over
the ranges that training draws; the density is uniform within a bin.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LOW, HIGH = (-0.75, -0.75, -1.2), (0.75, 0.75, 2.4)


def normalised(window: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    """Windows with each range brought to [-1, 1]; what lies outside is moved to its end."""
    low, high = window.new_tensor(LOW), window.new_tensor(HIGH)
    return (2 * (window - low) / (high - low) - 1).clamp(-1, 1)


def inside(window: Float[Tensor, "*batch 3"]) -> Bool[Tensor, "*batch"]:
    """Whether windows lie in the ranges; what is not finite does not."""
    low, high = window.new_tensor(LOW), window.new_tensor(HIGH)
    return ((window >= low) & (window <= high)).all(-1)


def locate(window: Float[Tensor, "*batch 3"], bins: int) -> Int[Tensor, "*batch 3"]:
    """The bin of each number."""
    return ((normalised(window) + 1) / 2 * bins).long().clamp_max(bins - 1)


def centre(index: Int[Tensor, "*batch"], bins: int) -> Float[Tensor, "*batch"]:
    """What the network sees of a bin: its centre in [-1, 1]."""
    return (2 * index.float() + 1) / bins - 1


def value(index: Float[Tensor, "*batch 3"], bins: int) -> Float[Tensor, "*batch 3"]:
    """The window at real-valued positions in bins: k + 1/2 is the centre of bin k."""
    low, high = index.new_tensor(LOW), index.new_tensor(HIGH)
    return low + (high - low) * index / bins


def log_volume(bins: int) -> float:
    """Logarithm of the volume of a cell of three bins."""
    return sum(math.log((high - low) / bins) for low, high in zip(LOW, HIGH))


def smeared(
    log_p: Float[Tensor, "*batch bins"], position: Float[Tensor, "*batch"], sigma: float
) -> Float[Tensor, "*batch"]:
    """Mean of log-probabilities over a Gaussian of `sigma` bins about a position in bins, restricted to finite ones."""
    bins = torch.arange(log_p.shape[-1], device=log_p.device, dtype=torch.float32)
    weights = torch.exp(-0.5 * ((bins - position[..., None]) / sigma).square()) * log_p.isfinite()
    return (weights * log_p.masked_fill(~log_p.isfinite(), 0)).sum(-1) / weights.sum(-1).clamp_min(1e-30)
