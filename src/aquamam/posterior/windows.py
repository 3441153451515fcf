r"""Where a part lies in its crop and how large it is: three numbers, each a token of bins after those of the
rotation.

A window is (a_x, a_y, b): the projection of the part's centre from the crop's middle in shares of its side, x right
and y down, and the logarithm of the apparent radius, in shares of the side, over a nominal one. Bins are equal over
the ranges that training draws; the density is uniform within a bin.
"""

import math

from jaxtyping import Bool, Float, Int
from torch import Tensor

LOW, HIGH = (-0.75, -0.75, -1.2), (0.75, 0.75, 2.4)


def inside(window: Float[Tensor, "*batch 3"]) -> Bool[Tensor, "*batch"]:
    """Whether windows lie in the ranges; what is not finite does not."""
    return ((window >= window.new_tensor(LOW)) & (window <= window.new_tensor(HIGH))).all(-1)


def position(window: Float[Tensor, "*batch 3"], bins: int) -> Float[Tensor, "*batch 3"]:
    """Windows as real numbers of bins: k + 1/2 is the centre of bin k. What lies outside is moved to the end."""
    low, high = window.new_tensor(LOW), window.new_tensor(HIGH)
    return ((window - low) / (high - low) * bins).clamp(0, bins)


def value(position: Float[Tensor, "*batch 3"], bins: int) -> Float[Tensor, "*batch 3"]:
    """The inverse of `position`."""
    low, high = position.new_tensor(LOW), position.new_tensor(HIGH)
    return low + (high - low) * position / bins


def locate(window: Float[Tensor, "*batch 3"], bins: int) -> Int[Tensor, "*batch 3"]:
    """The bin of each number."""
    return position(window, bins).long().clamp_max(bins - 1)


def centre(index: Int[Tensor, "*batch"], bins: int) -> Float[Tensor, "*batch"]:
    """What the network sees of a bin: its centre in [-1, 1]."""
    return (2 * index.float() + 1) / bins - 1


def log_volume(bins: int) -> float:
    """Logarithm of the volume of a cell of three bins."""
    return sum(math.log((high - low) / bins) for low, high in zip(LOW, HIGH))
