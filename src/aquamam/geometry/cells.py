r"""Charts, bins, legal bins, and the volumes of cells: everything a "quaternion sentence" needs but the network.

A chart is a rotation as three of its quaternion's components, the fourth dropped. Both charts are one family. With the
peak weight $\lambda$ the domain of the kept components is

$$D_\lambda = \{u \in \mathbb{R}^3 : |u|^2 + \lambda \max_i u_i^2 \le 1\}, \qquad |u_i| \le h = 1/\sqrt{1 + \lambda}.$$

- ``hemisphere``, $\lambda = 0$: the paper's (Section 2.2). Drop $q_w \ge 0$; D is the unit ball. Degenerate at 180
  degrees, where $q_w \to 0$.
- ``atlas``, $\lambda = 1$: drop the component of largest magnitude, made positive; four charts. $q_m \ge |u_i|$ is the
  second term of D, and $q_m \ge 1/2$ everywhere, so nothing degenerates.

The surface element of the half 3-sphere is $dS = du / q_m$, so a density of u becomes one of rotations (volume $\pi^2$)
when multiplied by the dropped component $q_m$: the paper's diluting factor.

A chart's box $[-h, h]^3$ is cut into N bins an axis; a sentence (i, j, k) is a cell. Edges stand at $h (2i - N) / N$,
whole multiples of $h / N$, so whether a cell meets the domain D is decided in integers: with e the inner edges,

$$\text{legal} \iff e_i^2 + e_j^2 + e_k^2 + \lambda \max(e_i^2, e_j^2, e_k^2) < (1 + \lambda) N^2.$$

The rule is monotone in each |e|, so the legal bins of the next component are a range that is symmetric about zero:
`first_legal` is the one place that decides legality.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.rotations import Generator, canonical

# A float32 quaternion cannot tell smaller components from zero; it keeps densities finite where they vanish or diverge.
SMALLEST = 1e-8
THINNEST = 1e-6  # smaller shares of a bin count as this one


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
        if self.peak:
            largest = squares.amax(-1) if prefix.shape[-1] else 0.0
            rest = torch.minimum(rest - largest, rest / 2)
        return rest.clamp_min(0).sqrt()

    def contains(self, u: Float[Tensor, "*batch 3"]) -> Bool[Tensor, "*batch"]:
        squares = u.square()
        return squares.sum(-1) + self.peak * squares.amax(-1) <= 1


# _KEPT[m] lists the components that chart m keeps; _PLACE[m][c] says where component c stands in [u, dropped].
_KEPT = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
_PLACE = torch.tensor([[3, 0, 1, 2], [0, 3, 1, 2], [0, 1, 3, 2], [0, 1, 2, 3]])

HEMISPHERE = Chart("hemisphere", (3,), 0, 1.0)
ATLAS = Chart("atlas", (0, 1, 2, 3), 1, 1 / 2**0.5)
CHARTS = {chart.name: chart for chart in (HEMISPHERE, ATLAS)}


class Cells:
    r"""N bins an axis on a chart, under one of the two densities.

    ``cells``: the network sees bin centres and $p(q) = P\, q_m / \mathrm{Vol}(\text{cell} \cap D)$, which integrates to
    one. ``paper``: it sees exact values and $p(q) = P\, q_m / (w\, \omega_2\, \omega_3)$ with widths cut at the exact
    remaining radius.
    """

    def __init__(self, chart: str = "atlas", bins: int = 500, density: str = "cells", *, by_volume: bool = False):
        """by_volume: bins that the boundary cuts start with the share of their volume that is left."""
        require(chart in CHARTS, f"chart must be one of {', '.join(CHARTS)}, got {chart!r}.")
        require(bins >= 1, f"bins must be a positive whole number, got {bins}.")
        require(density in ("cells", "paper"), f"density must be 'cells' or 'paper', got {density!r}.")
        require(density == "cells" or not by_volume, f"by_volume needs density 'cells', got {density!r}.")
        self.chart, self.bins, self.density, self.by_volume = CHARTS[chart], bins, density, by_volume
        self.unit = self.chart.half_width / bins  # half the width of a bin: edges are whole multiples of it
        self.width = 2 * self.unit
        # the largest log density at the centre of a chart: all probability on one uncut cell where q_m = 1
        self.ceiling = -3 * math.log(self.width)
        self.first_tokens = self.chart.count * bins  # classes of the first token: chart and bin together
        self._distances = self.distance(torch.arange(bins))
        self._inner_squares = self.inner(torch.arange(bins // 2, bins)).square()  # of the upper half

    def centre(self, bins: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return (2.0 * bins.double() + 1 - self.bins) * self.unit

    def distance(self, bins: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Distances of bins' centres from zero in units."""
        return (2 * bins + 1 - self.bins).abs()

    def inner(self, bins: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Distance of the edge nearer to zero in units; 0 for the bin that straddles zero (odd N)."""
        return (2 * bins + 1 - self.bins).abs().sub(1).clamp_min(0)

    def outer(self, bins: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        return (2 * bins + 1 - self.bins).abs() + 1

    def first_legal(self, prefix: Int[Tensor, "*batch c"]) -> Int[Tensor, "*batch"]:
        """First legal bin f after the bins so far; the legal ones are f, ..., N - 1 - f. Decides it for everyone."""
        squares = self.inner(prefix).square()
        limit = (1 + self.chart.peak) * self.bins**2 - squares.sum(-1)  # e^2 + lambda max(M, e^2) < limit
        if self.chart.peak:  # 2 e^2 < limit and e^2 < limit - M: both must hold, as either may be the maximum
            largest = squares.amax(-1) if prefix.shape[-1] else 0
            limit = torch.minimum(limit - largest, (limit + 1) // 2)
        legal_distances = torch.searchsorted(self._inner_squares.to(limit.device), limit.contiguous())
        return (self.bins + 1) // 2 - legal_distances

    def legal(self, prefix: Int[Tensor, "*batch c"]) -> Bool[Tensor, "*batch bins"]:
        """Which bins may come next: those no farther from zero than the first legal one."""
        farthest = self.bins - 1 - 2 * self.first_legal(prefix)
        return self._distances.to(prefix.device) <= farthest[..., None]

    def restrict(
        self, logits: Float[Tensor, "*batch bins"], prefix: Int[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch bins"]:
        """Logits of the next bin given the bins so far: -inf where illegal, less where cut if cells count by volume."""
        logits = logits.masked_fill(~self.legal(prefix), -torch.inf)
        return logits + self.log_share(prefix) if self.by_volume else logits

    def log_share(self, prefix: Int[Tensor, "*batch c"]) -> Float[Tensor, "*batch bins"]:
        r"""About the log of the share of each next bin that the boundary leaves, at least `THINNEST`; 0 inside.

        With equal logits slivers would have absurd densities, and where they are must be learnt from few examples. With
        this added, slivers get what their volume is worth. Any function of the bins would do, as the density divides by
        exact volumes: here the room left by the earlier bins, which falls from their inner to their outer corner, is
        taken as even between these two.
        """
        corners = (edge(prefix) * self.unit for edge in (self.inner, self.outer))
        most, least = (self.chart.room(corner)[..., None].float() for corner in corners)
        upper = torch.arange(self.bins // 2, self.bins, device=prefix.device)  # for odd N the first one's upper half
        edges = torch.cat([self.inner(upper[:1]), self.outer(upper)]).float() * self.unit
        spread = (most - least).clamp_min(1e-9)
        # what is left beyond each edge, on average over the rooms
        left = (most - edges).clamp(min=0).minimum(spread).square_().div_(2 * spread)
        left = left.add_((least - edges).clamp_(min=0))
        share = left[..., :-1].sub(left[..., 1:]).div_(edges.diff()).clamp_(THINNEST, 1).log_()
        return torch.cat([share[..., self.bins % 2 :].flip(-1), share], -1)  # the lower half mirrors the upper one

    def locate(self, point: ChartPoint) -> Int[Tensor, "*batch 3"]:
        """The cell of each point, always a legal one.

        A value on an edge belongs to the bin below it (``paper``, as in the original's code) or to the bin nearer to
        zero (``cells``). Rounding may put a point of D into an illegal neighbour; it then moves inwards.
        """
        scaled = point.u.double() / self.width + self.bins / 2  # bin number as a real number
        below = scaled.ceil() - 1
        if self.density == "cells":
            below = torch.where(point.u < 0, scaled.floor(), below)
        label = below.long()
        cell = torch.empty_like(label)
        for c in range(3):
            first = self.first_legal(cell[..., :c])
            cell[..., c] = label[..., c].clamp(first, self.bins - 1 - first)
        return cell

    def seen(self, u: Float[Tensor, "*batch"], bins: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """What the network is shown of a component: its bin's centre (``cells``) or its exact value (``paper``)."""
        return self.centre(bins) if self.density == "cells" else u

    def log_factor(self, point: ChartPoint, cell: Int[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
        r"""What is added to the log-probability of a sentence: $\ln q_m - \ln \mathrm{Vol}$, float64, no gradient.

        Vol is that of cell ∩ D (``cells``) or the paper's product of cut widths (Equation 3, ``paper``).
        """
        log_dropped = point.dropped.double().clamp_min(SMALLEST).log()
        if self.density == "cells":
            return log_dropped - self.log_volume(cell)
        log_volume = torch.full_like(log_dropped, math.log(self.width))
        for c in (1, 2):
            inner, outer = (edge(cell[..., c]).double() * self.unit for edge in (self.inner, self.outer))
            top = torch.minimum(self.chart.room(point.u[..., :c].double()), outer)
            halves = 1 + (inner == 0) * (self.bins % 2)  # of the bin that straddles zero both halves are cut
            log_volume = log_volume + ((top - inner) * halves).clamp_min(SMALLEST).log()
        return log_dropped - log_volume

    def is_cut(self, cell: Int[Tensor, "*batch 3"]) -> Bool[Tensor, "*batch"]:
        squares = self.outer(cell).square()
        return squares.sum(-1) + self.chart.peak * squares.amax(-1) > (1 + self.chart.peak) * self.bins**2

    def log_volume(self, cell: Int[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
        r"""$\ln \mathrm{Vol}(\text{cell} \cap D)$ of legal cells, float64: by quadrature where the boundary cuts."""
        log_volume = torch.full(cell.shape[:-1], 3 * math.log(self.width), dtype=torch.float64, device=cell.device)
        cut = self.is_cut(cell)
        if cut.any():
            # a volume depends on the bins' distances from zero in any order: each kind is computed once
            kinds = self.distance(cell[cut]).sort(dim=-1, descending=True).values
            code = (kinds[:, 0] * self.bins + kinds[:, 1]) * self.bins + kinds[:, 2]  # unique is quickest on numbers
            code, which = code.unique(return_inverse=True)
            kinds = torch.stack([code // self.bins**2, code // self.bins % self.bins, code % self.bins], -1)
            log_volume[cut] = torch.cat([self._cut_volume(part) for part in kinds.split(16_384)]).log()[which]
        return log_volume

    def _cut_volume(self, distance: Int[Tensor, "cells 3"]) -> Float[Tensor, "cells"]:
        r"""Volume of cell ∩ D from the distances of its bins, largest first; relative error below 1e-6.

        The cell is reflected into the positive octant, and x is its largest component. There D is the ellipsoid
        $\kappa x^2 + y^2 + z^2 \le 1$, $\kappa = 1 + \lambda$. In the atlas, cells on a diagonal (equal bins) are
        congruent parts, of which we integrate the one where x is largest: y and z then end at x instead of at their
        bin's edge. With everything measured from the inner corner, $1 - \kappa x^2 - y^2 - z^2$ is a difference of
        exact integers minus small numbers, so slivers lose no digits.
        """
        kappa = 1 + self.chart.peak
        (a1, a2, a3), (b1, b2, b3) = (edge.clamp_min(0).double().unbind(-1) for edge in (distance - 1, distance + 1))
        y_tied, z_tied = ((distance[:, i] == distance[:, 0]) & (self.chart.peak > 0) for i in (1, 2))
        radius = float(kappa * self.bins**2)

        def reach(y_end: Tensor, y_follows: Tensor, z_end: Tensor, z_follows: Tensor) -> Tensor:
            """Offset from a1 at which the boundary passes (y, z): two ends, or x itself where they follow it."""
            k = kappa + y_follows.double() + z_follows
            rest = torch.where(y_follows, 0.0, y_end).square() + torch.where(z_follows, 0.0, z_end).square()
            slack = radius - k * a1.square() - rest
            offset = slack / (k * a1 + (k * a1).square().add(k * slack).clamp_min(0).sqrt()).clamp_min(1e-300)
            return torch.where(slack > 0, offset, 0.0).minimum(b1 - a1)

        # between these the slice's area is smooth in x
        never = torch.zeros_like(y_tied)
        y_ends, z_ends = ((b2, y_tied), (a2, never)), ((b3, z_tied), (a3, never))
        kinks = [reach(*y, *z) for y in y_ends for z in z_ends]
        stops = torch.stack([torch.zeros_like(a1), *kinks], -1).sort(-1).values
        node, weight = _gauss_to_the_right(a1.device)
        start, length = stops[:, :-1, None], stops.diff(dim=-1)[..., None]
        t, dt = (start + length * node).flatten(1), (length * weight).flatten(1)  # (cells, points)
        slack = (radius - kappa * a1.square() - a2.square() - a3.square())[:, None]
        slack = (slack - kappa * (2 * a1[:, None] * t + t.square())).clamp_min(0)
        x = a1[:, None] + t
        y_size, z_size = (
            torch.where(tied[:, None], x, outer[:, None]) - inner[:, None]
            for tied, inner, outer in ((y_tied, a2, b2), (z_tied, a3, b3))
        )
        area = _slice_area(slack, a2[:, None], y_size, a3[:, None], z_size)
        halves = 2.0 ** (distance == 0).sum(-1)  # bins that straddle zero
        return (area * dt).sum(-1) * (1 + y_tied.double() + z_tied) * halves * self.unit**3

    def uniform(self, cell: Int[Tensor, "*batch 3"], generator: Generator = None) -> Float[Tensor, "*batch 3"]:
        """One uniform point of cell ∩ D for each legal cell, float64.

        Rejection from the smallest box around cell ∩ D: D is convex, so that box is at most six times too large.
        """
        flat = cell.reshape(-1, 3)
        near, far = (edge(flat).double() * self.unit for edge in (self.inner, self.outer))
        straddles = self.distance(flat) == 0  # only for odd N
        room = torch.stack([self.chart.room(near[:, others]) for others in ([1, 2], [0, 2], [0, 1])], -1)
        high = torch.minimum(far, room)
        low = torch.where(straddles, -high, near)
        u = torch.empty_like(low)
        pending = torch.arange(len(flat), device=cell.device)
        while len(pending):
            draw = torch.rand((len(pending), 3), generator=generator, dtype=torch.float64, device=cell.device)
            u[pending] = low[pending] + (high - low)[pending] * draw
            pending = pending[~self.chart.contains(u[pending])]
        negative = 2 * flat + 1 < self.bins
        return torch.where(negative & ~straddles, -u, u).reshape(cell.shape)

    def representative(self, cell: Int[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """One point for each cell, float64: its centre, and where that is not in D the paper's radial projection
        (``paper``) or the point halfway from the inner corner to the boundary (``cells``), which lies in the cell."""
        u = self.centre(cell)
        if self.density == "paper":
            return u / u.norm(dim=-1, keepdim=True).clamp_min(1)
        corner = self.inner(cell).double() * self.unit * u.sign()
        step = u - corner
        # corner + t step leaves D at the first root of |u|^2 + lambda u_i^2 = 1 over i
        square = step.square().sum(-1, keepdim=True) + self.chart.peak * step.square()
        slope = (corner * step).sum(-1, keepdim=True) + self.chart.peak * corner * step
        slack = 1 - corner.square().sum(-1, keepdim=True) - self.chart.peak * corner.square()
        leaves = (slack / (slope + (slope.square() + square * slack).sqrt()).clamp_min(1e-300)).amin(-1, keepdim=True)
        return torch.where(self.chart.contains(u)[..., None], u, corner + step * leaves / 2)


def _slice_area(slack: Tensor, a2: Tensor, y_size: Tensor, a3: Tensor, z_size: Tensor) -> Tensor:
    """Area of the rectangle at (a2, a3) of these sizes in y^2 + z^2 <= a2^2 + a3^2 + slack: a strip, then the arc."""

    def arc(free: Tensor) -> Tensor:
        """Largest v with 2 a2 v + v^2 <= free."""
        free = free.clamp_min(0)
        return free / (a2 + (a2.square() + free).sqrt()).clamp_min(1e-300)

    v_max = torch.minimum(arc(slack), y_size)
    v_full = torch.minimum(arc(slack - z_size * (2 * a3 + z_size)), v_max)
    node, weight = _gauss_to_the_right(slack.device)
    v = v_full[..., None] + (v_max - v_full)[..., None] * node
    height_squared = (slack[..., None] - v * (2 * a2[..., None] + v)).clamp_min(0)
    height = height_squared / (a3[..., None] + (a3[..., None].square() + height_squared).sqrt()).clamp_min(1e-300)
    return v_full * z_size + (v_max - v_full) * (height * weight).sum(-1)


def _gauss_to_the_right(device: torch.device) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre of eight points on [0, 1] after s = 1 - v^2, which takes away a square root's singularity at 1."""
    x, w = np.polynomial.legendre.leggauss(8)
    v, w = (x + 1) / 2, w / 2
    return torch.tensor(1 - v**2, device=device), torch.tensor(2 * v * w, device=device)
