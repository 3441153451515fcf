r"""Charts: a rotation as three of its quaternion's components, the fourth dropped.

Both charts are one family. With the peak weight $\lambda$ the domain of the kept components is

$$D_\lambda = \{u \in \mathbb{R}^3 : |u|^2 + \lambda \max_i u_i^2 \le 1\}, \qquad |u_i| \le h = 1/\sqrt{1 + \lambda}.$$

- ``hemisphere``, $\lambda = 0$: the paper's (Section 2.2). Drop $q_w \ge 0$; D is the unit ball. Degenerate at 180
  degrees, where $q_w \to 0$.
- ``atlas``, $\lambda = 1$: drop the component of largest magnitude, made positive; four charts. $q_m \ge |u_i|$ is the
  second term of D, and $q_m \ge 1/2$ everywhere, so nothing degenerates.

The surface element of the half 3-sphere is $dS = du / q_m$, so a density of u becomes one of rotations (volume $\pi^2$)
when multiplied by the dropped component $q_m$: the paper's diluting factor.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aquamam.geometry.rotations import canonical


class ChartPoint(NamedTuple):
    chart: Int[Tensor, "*batch"]  # its number
    u: Float[Tensor, "*batch 3"]  # the kept components, in the order x, y, z, w
    dropped: Float[Tensor, "*batch"]  # q_m >= 0


@dataclass(frozen=True)
class Chart:
    """One way to lay out rotations in a box; see the module's docstring for the family."""

    name: str
    components: tuple[int, ...]  # which component each chart drops (x, y, z, w = 0, 1, 2, 3)
    peak: int  # lambda
    half_width: float  # largest magnitude of a kept component

    @cached_property
    def count(self) -> int:
        return len(self.components)

    def split(self, q: Float[Tensor, "*batch 4"]) -> ChartPoint:
        """Chart index, kept components and dropped component of unit quaternions (xyzw, either sign)."""
        q = canonical(q)
        if self.count == 1:
            return ChartPoint(torch.zeros(q.shape[:-1], dtype=torch.long, device=q.device), q[..., :3], q[..., 3])
        index = q.abs().argmax(-1)
        dropped = q.gather(-1, index[..., None])
        q = torch.where(dropped < 0, -q, q) + 0.0  # no negative zeros: they would change the bin on an edge
        return ChartPoint(index, q.gather(-1, _KEPT.to(q.device)[index]), dropped.abs().squeeze(-1))

    def join(self, index: Int[Tensor, "*batch"], u: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4"]:
        """The canonical quaternion (xyzw) of a point of a chart; points outside the ball are pulled back to it."""
        dropped = (1 - u.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
        q = torch.cat([u, dropped], -1)
        if self.count > 1:
            q = q.gather(-1, _PLACE.to(q.device)[index])
        return canonical(q / q.norm(dim=-1, keepdim=True))

    def room(self, prefix: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        r"""Largest magnitude left for one more component.

        $r^2 = \min(1 - \Sigma - \lambda M, (1 - \Sigma) / (1 + \lambda))$ with the sum and the maximum of the squares
        so far: either an earlier component stays the largest, or the new one is.
        """
        squares = prefix.square()
        rest = 1 - squares.sum(-1)
        new_is_largest = rest / (1 + self.peak)
        if not self.peak or prefix.shape[-1] == 0:
            return new_is_largest.clamp_min(0).sqrt()
        return torch.minimum(rest - squares.amax(-1), new_is_largest).clamp_min(0).sqrt()

    def contains(self, u: Float[Tensor, "*batch 3"]) -> Bool[Tensor, "*batch"]:
        squares = u.square()
        return squares.sum(-1) + self.peak * squares.amax(-1) <= 1


# _KEPT[m] lists the components that chart m keeps; _PLACE[m][c] says where component c stands in [u, dropped].
_KEPT = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
_PLACE = torch.tensor([[3, 0, 1, 2], [0, 3, 1, 2], [0, 1, 3, 2], [0, 1, 2, 3]])

HEMISPHERE = Chart("hemisphere", (3,), 0, 1.0)
ATLAS = Chart("atlas", (0, 1, 2, 3), 1, 1 / 2**0.5)
CHARTS = {chart.name: chart for chart in (HEMISPHERE, ATLAS)}
