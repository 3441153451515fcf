r"""Bins, legal bins, and the volumes of cells: everything a "quaternion sentence" needs but the network.

A chart's box $[-h, h]^3$ is cut into N bins an axis; a sentence (i, j, k) is a cell. Edges stand at $h (2i - N) / N$, so in units of
$h / N$ they are integers, and whether a cell meets the domain D is decided in exact integer arithmetic: with e the inner edges,

$$\text{legal} \iff e_i^2 + e_j^2 + e_k^2 + \lambda \max(e_i^2, e_j^2, e_k^2) < (1 + \lambda) N^2.$$

The rule is monotone in each |e|, so the legal bins of the next component are a range that is symmetric about zero: `first_legal` is
the one place that decides legality.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.charts import Chart, ChartPoint, get_chart

# A float32 quaternion cannot tell smaller components from zero. Density vanishes (or diverges) only on a null set; this keeps it finite there.
SMALLEST = 1e-8
THINNEST = 1e-6  # share of a bin below which slivers count alike


@dataclass(frozen=True)
class Cells:
    """N bins an axis on a chart, under one of the two densities.

    ``cells``: the network sees bin centres and $p(q) = P(i, j, k)\\, q_m / \\mathrm{Vol}(\\text{cell} \\cap D)$, which integrates to one.
    ``paper``: the network sees exact values and $p(q) = P\\, q_m / (w\\, \\omega_2\\, \\omega_3)$ with widths cut at the exact remaining radius.
    """

    chart: Chart
    bins: int
    density: str
    # bins that the boundary cuts start with the share of their volume that is left, see `log_share`
    by_volume: bool = False

    @classmethod
    def make(
        cls,
        chart: str = "atlas",
        bins: int = 500,
        density: str = "cells",
        *,
        by_volume: bool = False,
    ) -> "Cells":
        if bins < 1:
            raise InputError(f"bins must be a positive whole number, got {bins}.")
        if density not in ("cells", "paper"):
            raise InputError(f"density must be 'cells' or 'paper', got {density!r}.")
        if by_volume and density != "cells":
            raise InputError(f"by_volume needs density 'cells', got {density!r}.")
        return cls(get_chart(chart), bins, density, by_volume)

    @property
    def width(self) -> float:
        """Width of a bin."""
        return 2 * self.chart.half_width / self.bins

    @property
    def ceiling(self) -> float:
        """Largest log density at the centre of a chart, $-3 \\ln w$ (volume $\\pi^2$): all probability on one uncut cell where q_m = 1."""
        return -3 * math.log(self.width)

    @property
    def first_tokens(self) -> int:
        """Number of classes of the first token: chart and bin together."""
        return self.chart.count * self.bins

    def centre(self, bins: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Centres of bins, float64."""
        return (2.0 * bins.double() + 1 - self.bins) * (self.width / 2)

    def inner(self, bins: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Magnitude of the edge nearer to zero in units of h / N; 0 for the bin that straddles zero (odd N)."""
        return (2 * bins + 1 - self.bins).abs().sub(1).clamp_min(0)

    def outer(self, bins: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """Magnitude of the edge farther from zero in units of h / N."""
        return (2 * bins + 1 - self.bins).abs() + 1

    @cached_property
    def _inner_squares(self) -> Int[Tensor, "magnitudes"]:
        upper_half = torch.arange(self.bins // 2, self.bins)
        return self.inner(upper_half).square()

    def first_legal(self, prefix: Int[Tensor, "*batch c"]) -> Int[Tensor, "*batch"]:
        """First legal bin f after the bins chosen so far; the legal ones are f, ..., N - 1 - f. Decides legality for everyone."""
        squares = self.inner(prefix).square()
        total = squares.sum(-1)
        limit = (1 + self.chart.peak) * self.bins**2 - total  # e^2 + lambda max(M, e^2) < limit
        if self.chart.peak and prefix.shape[-1]:
            # e^2 < limit - M while e^2 <= M, and 2 e^2 < limit beyond: both must hold, as either term of the maximum does
            limit = torch.minimum(limit - squares.amax(-1), (limit + 1) // 2)
        elif self.chart.peak:
            limit = (limit + 1) // 2
        legal_magnitudes = torch.searchsorted(self._inner_squares.to(limit.device), limit.contiguous())
        return (self.bins + 1) // 2 - legal_magnitudes

    def legal(self, prefix: Int[Tensor, "*batch c"]) -> Bool[Tensor, "*batch bins"]:
        """Which bins may come next."""
        return ~self.illegal(prefix)

    def illegal(self, prefix: Int[Tensor, "*batch c"]) -> Bool[Tensor, "*batch bins"]:
        """Which bins may not: those whose centre is farther from zero than that of the first legal one. One comparison a bin."""
        farthest = self.bins - 1 - 2 * self.first_legal(prefix)
        return self._distances.to(prefix.device) > farthest[..., None]

    def restrict(
        self, logits: Float[Tensor, "*batch bins"], prefix: Int[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch bins"]:
        """Logits of the next bin given the bins so far: -inf where illegal, less where cut if cells count by volume."""
        logits = logits.masked_fill(self.illegal(prefix), -torch.inf)
        return logits + self.log_share(prefix) if self.by_volume else logits

    def log_share(self, prefix: Int[Tensor, "*batch c"]) -> Float[Tensor, "*batch bins"]:
        r"""About the log of the share of each next bin that the boundary leaves, at least `THINNEST`; 0 inside.

        A network that gives all bins alike would fill slivers to absurd densities, and it must learn where they are from few examples.
        With this added to its logits, it gives them as much as their volume is worth. Any function of the bins would do, as the density
        divides by exact volumes: here the room left by the earlier bins, which falls from their inner to their outer corner, is taken
        as even between these two.
        """
        unit = self.chart.half_width / self.bins
        most, least = (
            self.chart.room(edge(prefix).double() * unit).float()[..., None] for edge in (self.inner, self.outer)
        )
        edges = self._upper_edges.to(prefix.device)
        spread = (most - least).clamp_min(1e-9)
        # what is left beyond each edge, on average over the rooms
        left = (
            (most - edges).clamp(min=0).minimum(spread).square_().div_(2 * spread).add_((least - edges).clamp_(min=0))
        )
        share = left[..., :-1].sub(left[..., 1:]).div_(edges.diff()).clamp_(THINNEST, 1).log_()
        return torch.cat([share[..., self.bins % 2 :].flip(-1), share], -1)  # the lower half mirrors the upper one

    @cached_property
    def _upper_edges(self) -> Float[Tensor, "edges"]:
        """Edges of the bins from zero up; for odd N the first bin is the half that lies there."""
        bins = torch.arange(self.bins // 2, self.bins)
        edges = torch.cat([self.inner(bins[:1]), self.outer(bins)])
        return edges.float() * (self.chart.half_width / self.bins)

    @cached_property
    def _distances(self) -> Int[Tensor, "bins"]:
        """Distances of the bins' centres from zero in units of h / N."""
        return (2 * torch.arange(self.bins) + 1 - self.bins).abs()

    def locate(self, point: ChartPoint) -> Int[Tensor, "*batch 3"]:
        """The cell of each point, always a legal one.

        A value on an edge belongs to the bin below it (``paper``, as the original's code has it) or to the bin nearer to zero (``cells``).
        Rounding may put a point of D into an illegal neighbour; it then moves inwards.
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
        unit = self.chart.half_width / self.bins
        log_volume = torch.full_like(log_dropped, math.log(self.width))
        for c in (1, 2):
            room = self.chart.room(point.u[..., :c].double())
            inner = self.inner(cell[..., c]).double() * unit
            top = torch.minimum(room, self.outer(cell[..., c]).double() * unit)
            # for the bin that straddles zero (odd N) both of its halves are cut
            halves = 1 + (self.inner(cell[..., c]) == 0) * (self.bins % 2)
            log_volume = log_volume + ((top - inner) * halves).clamp_min(SMALLEST).log()
        return log_dropped - log_volume

    def is_cut(self, cell: Int[Tensor, "*batch 3"]) -> Bool[Tensor, "*batch"]:
        """Whether the boundary of D passes through a cell."""
        squares = self.outer(cell).square()
        return squares.sum(-1) + self.chart.peak * squares.amax(-1) > (1 + self.chart.peak) * self.bins**2

    def log_volume(self, cell: Int[Tensor, "*batch 3"]) -> Float[Tensor, "*batch"]:
        r"""$\ln \mathrm{Vol}(\text{cell} \cap D)$ of legal cells, float64: bin width cubed inside, by quadrature where the boundary cuts."""
        log_volume = torch.full(cell.shape[:-1], 3 * math.log(self.width), dtype=torch.float64, device=cell.device)
        cut = self.is_cut(cell)
        if cut.any():
            # a volume depends on the bins' distances from zero in any order: compute each kind once
            kinds, which = self._kinds(cell[cut]).unique(return_inverse=True)
            volume = torch.cat([self._cut_volume(self._unpack(part)) for part in kinds.split(16_384)])
            log_volume[cut] = volume.log()[which]
        return log_volume

    def _kinds(self, cell: Int[Tensor, "cells 3"]) -> Int[Tensor, "cells"]:
        """Twice the distances of the bins' centres from zero in units of bins, largest first, packed into one number."""
        far, mid, near = (2 * cell + 1 - self.bins).abs().sort(dim=-1, descending=True).values.unbind(-1)
        return (far * self.bins + mid) * self.bins + near

    def _unpack(self, kinds: Int[Tensor, "cells"]) -> Int[Tensor, "cells 3"]:
        return torch.stack([kinds // self.bins**2, kinds // self.bins % self.bins, kinds % self.bins], -1)

    def _cut_volume(self, scale: Int[Tensor, "cells 3"]) -> Float[Tensor, "cells"]:
        r"""Volume of cell ∩ D from the bins' distances (`_kinds`), relative error below 1e-6 however thin the sliver.

        The cell is reflected into the positive octant, and x is its largest component. There D is the ellipsoid
        $\kappa x^2 + y^2 + z^2 \le 1$, $\kappa = 1 + \lambda$. In the atlas, cells on a diagonal (equal bins) are t congruent parts, of which
        we integrate the one where x is largest: y and z then end at x instead of at their bin's edge. With everything measured from the
        inner corner, $1 - \kappa x^2 - y^2 - z^2$ is a difference of exact integers minus small numbers, so slivers lose no digits.
        """
        kappa = 1 + self.chart.peak
        a = (scale - 1).clamp_min(0).double()  # inner corner, in units of h / N
        b = (scale + 1).double()
        halves = 2.0 ** (scale == 0).sum(-1).double()  # bins that straddle zero
        tied = (scale[:, 1:] == scale[:, :1]) if self.chart.peak else torch.zeros_like(scale[:, 1:], dtype=torch.bool)
        radius = float(kappa * self.bins**2)
        (a1, a2, a3), (b1, b2, b3) = a.unbind(-1), b.unbind(-1)

        def reach(y_end: str, z_end: str) -> Tensor:
            """Offset from a1 at which the boundary passes (y, z), each at its inner or outer end."""
            k, rest = torch.full_like(a1, kappa), torch.zeros_like(a1)
            for end, low, high, tie in ((y_end, a2, b2, tied[:, 0]), (z_end, a3, b3, tied[:, 1])):
                follows_x = tie if end == "outer" else torch.zeros_like(tie)
                k = k + follows_x
                rest = rest + torch.where(follows_x, 0.0, high if end == "outer" else low).square()
            slack = radius - k * a1.square() - rest
            offset = slack / (k * a1 + (k * a1).square().add(k * slack).clamp_min(0).sqrt()).clamp_min(1e-300)
            return torch.where(slack > 0, offset, 0.0).minimum(b1 - a1)

        # between these the slice's area is smooth in x
        stops = torch.stack(
            [torch.zeros_like(a1), *(reach(y, z) for y in ("outer", "inner") for z in ("outer", "inner"))], -1
        )
        stops = stops.sort(-1).values
        node, weight = _gauss_to_the_right(8, a.device)
        start, length = stops[:, :-1, None], stops.diff(dim=-1)[..., None]
        t = (start + length * node).flatten(1)  # (cells, points)
        dt = (length * weight).flatten(1)

        column = [v[:, None] for v in (a1, a2, a3, b2, b3, tied[:, 0], tied[:, 1])]
        slack = (radius - kappa * a1.square() - a2.square() - a3.square())[:, None] - kappa * (
            2 * a1[:, None] * t + t.square()
        )
        area = _slice_area(t, slack.clamp_min(0), *column)
        unit = self.chart.half_width / self.bins
        return (area * dt).sum(-1) * (1 + tied.sum(-1)) * halves * unit**3

    def uniform(
        self, cell: Int[Tensor, "*batch 3"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch 3"]:
        """One uniform point of cell ∩ D for each legal cell, float64.

        Rejection from the smallest box around cell ∩ D: D is convex, so that box is at most six times too large.
        """
        unit = self.chart.half_width / self.bins
        flat = cell.reshape(-1, 3)
        straddles = self.inner(flat) + self.outer(flat) == 1  # only for odd N: [-1, 1]
        low = torch.where(straddles, -unit, self.inner(flat).double() * unit)
        high = self.outer(flat).double() * unit
        near = self.inner(flat).double() * unit
        room = torch.stack([self.chart.room(near[:, [j for j in range(3) if j != i]]) for i in range(3)], -1)
        high = torch.minimum(high, room)
        low = torch.maximum(low, -high)
        u = torch.empty_like(low)
        pending = torch.arange(len(flat), device=cell.device)
        while len(pending):
            draw = torch.rand((len(pending), 3), generator=generator, dtype=torch.float64, device=cell.device)
            u[pending] = low[pending] + (high - low)[pending] * draw
            pending = pending[~self.chart.contains(u[pending])]
        negative = 2 * flat + 1 < self.bins
        return torch.where(negative & ~straddles, -u, u).reshape(cell.shape)

    def representative(self, cell: Int[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """One point for each cell, float64: its centre; where that is not in D, the paper's radial projection (``paper``) or the
        point halfway from the inner corner to the boundary (``cells``), which lies in the cell."""
        u = self.centre(cell)
        if self.density == "paper":
            return u / u.norm(dim=-1, keepdim=True).clamp_min(1)
        inside = self.chart.contains(u)[..., None]
        if bool(inside.all()):
            return u
        side = torch.where(2 * cell + 1 < self.bins, -1.0, 1.0)
        corner = self.inner(cell).double() * (self.chart.half_width / self.bins) * side
        step = u - corner
        lowest, highest = torch.zeros_like(u[..., :1]), torch.ones_like(u[..., :1])
        for _ in range(40):  # where the segment from corner to centre leaves D
            middle = (lowest + highest) / 2
            fits = self.chart.contains(corner + middle * step)[..., None]
            lowest, highest = torch.where(fits, middle, lowest), torch.where(fits, highest, middle)
        return torch.where(inside, u, corner + step * lowest / 2)


def _slice_area(t, slack, a1, a2, a3, b2, b3, y_tied, z_tied) -> Tensor:
    """Area of {a2 <= y <= y_end, a3 <= z <= z_end, y^2 + z^2 <= a2^2 + a3^2 + slack}: a full strip, then a part under the arc."""
    y_end = torch.where(y_tied, a1 + t, b2) - a2
    z_end = torch.where(z_tied, a1 + t, b3) - a3

    def arc(free: Tensor) -> Tensor:
        """Largest v with 2 a2 v + v^2 <= free."""
        free = free.clamp_min(0)
        return free / (a2 + (a2.square() + free).sqrt()).clamp_min(1e-300)

    v_max = torch.minimum(arc(slack), y_end)
    v_full = torch.minimum(arc(slack - z_end * (2 * a3 + z_end)), v_max)
    node, weight = _gauss_to_the_right(8, t.device)
    v = v_full[..., None] + (v_max - v_full)[..., None] * node
    height_squared = (slack[..., None] - v * (2 * a2[..., None] + v)).clamp_min(0)
    height = height_squared / (a3[..., None] + (a3[..., None].square() + height_squared).sqrt()).clamp_min(1e-300)
    return v_full * z_end + (v_max - v_full) * (height * weight).sum(-1)


def _gauss_to_the_right(points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre on [0, 1] after s = 1 - v^2, which takes away a square-root singularity at the right end."""
    x, w = np.polynomial.legendre.leggauss(points)
    v, w = (x + 1) / 2, w / 2
    return torch.tensor(1 - v**2, device=device), torch.tensor(2 * v * w, device=device)
