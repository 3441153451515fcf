r"""Weighted points that stand for a product of posteriors, and where to draw them.

Points come from all frames in equal parts, so that a weight, product over mixture, is bounded by the densities of the other frames.
Where few of the points count, kernels around the best ones join the mixture, by tempered weights at first.
"""

import math
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from aquamam.geometry.directional import draw_category, draw_uniform
from aquamam.geometry.rotations import LOG_UNIFORM, inverse, multiply, random_quat
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.kernel_mixture import KernelMixture, crowding

TRIAL = 512  # points of a round that looks for a proposal
ROUNDS = 8  # of looking, at most
ENOUGH, FAIR = 0.3, 0.1  # shares of points that count at which no more is looked for: at once, or if it no longer grows
AGAIN = 2  # times that the points to keep are drawn anew where they turn out to be few
KERNELS = 256  # of a proposal
WIDTH = 0.6  # of a kernel, in distances to its twelfth neighbour
SHARES = (0.25, 0.7, 0.05)  # of frames, kernels and uniform rotations in a proposal that has moved


@dataclass(frozen=True, eq=False)
class Frames:
    """The factors of the product: posteriors of B images each, or one posterior whose images are the frames of one object."""

    posteriors: tuple[RotationDistribution, ...]
    relative: Float64[Tensor, "frames batch 4"]
    weights: Float64[Tensor, "frames 1"]
    stacked: bool

    def log_ratios(self, q: Float64[Tensor, "points batch 4"]) -> Float64[Tensor, "points frames batch"]:
        r"""$\ln p_i(D_i q) / u$ for each frame."""
        if self.stacked:
            log_p = self.posteriors[0].log_prob(multiply(self.relative[:, 0], q))[..., None]
        else:
            each = [p.log_prob(multiply(turn, q)) for p, turn in zip(self.posteriors, self.relative)]
            log_p = torch.stack(each, 1)
        return log_p.double() - LOG_UNIFORM

    def total(self, log_ratios: Float64[Tensor, "points frames batch"]) -> Float64[Tensor, "points batch"]:
        """Log of the product with respect to the uniform distribution; a frame of weight 0 has no say even where it forbids."""
        return torch.where(self.weights == 0, 0.0, self.weights * log_ratios).sum(1)

    def sample(self, count: int, generator: torch.Generator | None) -> Float64[Tensor, "points batch 4"]:
        """Points from the even mixture of all frames, as rotations of the reference."""
        frames, batch = self.relative.shape[:2]
        each = math.ceil(count / frames)
        if self.stacked:
            drawn = self.posteriors[0].sample((each,), generator=generator)[:, :, None]
        else:
            drawn = torch.stack([p.sample((each,), generator=generator) for p in self.posteriors], 1)
        q = multiply(inverse(self.relative), drawn.double()).reshape(each * frames, batch, 4)
        return _shuffled(q, generator)[:count]


def _shuffled(q: Float64[Tensor, "points batch 4"], generator: torch.Generator | None) -> Tensor:
    order = draw_uniform(q.shape[:2], generator, q.device).argsort(0)
    return q.gather(0, order.unsqueeze(-1).expand_as(q))


@dataclass(frozen=True, eq=False)
class Proposal:
    """Where points come from: shares of the frames, of kernels, and of uniform rotations."""

    frames: Frames
    kernels: KernelMixture | None = None

    @property
    def shares(self) -> tuple[float, float, float]:
        return (1.0, 0.0, 0.0) if self.kernels is None else SHARES

    def draw(
        self, count: int, generator: torch.Generator | None, *, even: bool = True
    ) -> Float64[Tensor, "points batch 4"]:
        """Points; `even` takes each share exactly, else by chance, as single points that stand alone must be."""
        if even:
            counts = [round(count * share) for share in self.shares]
            counts[0] += count - sum(counts)
        else:
            chosen = draw_category(torch.tensor([self.shares]).log(), count, generator)
            counts = torch.bincount(chosen.flatten(), minlength=3).tolist()
        batch, device = self.frames.relative.shape[1], self.frames.relative.device
        parts = [self.frames.sample(counts[0], generator)]
        if self.kernels is not None:
            parts.append(self.kernels.sample((counts[1],), generator=generator))
            parts.append(random_quat((counts[2], batch), generator=generator, dtype=torch.float64, device=device))
        return _shuffled(torch.cat(parts), generator)

    def log_density(
        self, q: Float64[Tensor, "points batch 4"], log_ratios: Float64[Tensor, "points frames batch"]
    ) -> Float64[Tensor, "points batch"]:
        """With respect to the uniform distribution."""
        mixture = log_ratios.logsumexp(1) - math.log(log_ratios.shape[1])
        if self.kernels is None:
            return mixture
        parts = [mixture, self.kernels.log_prob(q) - LOG_UNIFORM, torch.zeros_like(mixture)]
        return torch.stack([math.log(share) + part for share, part in zip(self.shares, parts)]).logsumexp(0)

    def weigh(self, q: Float64[Tensor, "points batch 4"]) -> "Points":
        """Points with the weights that make them stand for the product."""
        ratios = self.frames.log_ratios(q)
        log_total = self.frames.total(ratios)
        return Points(q, ratios, log_total, log_total - self.log_density(q, ratios))


@dataclass(frozen=True, eq=False)
class Points:
    """Weighted points; logarithms are of ratios to the uniform density."""

    q: Float64[Tensor, "points batch 4"]
    log_ratios: Float64[Tensor, "points frames batch"]
    log_total: Float64[Tensor, "points batch"]
    log_weight: Float64[Tensor, "points batch"]

    @property
    def share(self) -> Float64[Tensor, "points batch"]:
        """Weights that sum to one."""
        return self.log_weight.softmax(0)

    @property
    def impossible(self) -> Bool[Tensor, "batch"]:
        """Whether no point is allowed by all frames."""
        return ~(self.log_weight > -torch.inf).any(0)

    @property
    def effective(self) -> Float64[Tensor, "batch"]:
        r"""Kish's number of points that count, $1 / \sum_k \bar w_k^2$."""
        return 1 / self.share.square().sum(0).clamp_min(1e-300)

    def pick(self, count: int, generator: torch.Generator | None, power: Tensor | float = 1.0) -> Tensor:
        """Indices (count, batch) drawn by the weights, or by a power of them."""
        return draw_category((power * self.log_weight).log_softmax(0).T, count, generator)

    def power(self, wanted: float) -> Float64[Tensor, "batch"]:
        """The largest power up to one of the weights under which so many points count."""
        low, high = torch.zeros_like(self.log_weight[0]), torch.ones_like(self.log_weight[0])
        for step in range(20):
            middle = (low + high) / 2 if step else high
            counts = 1 / (middle * self.log_weight).softmax(0).square().sum(0) >= wanted
            low, high = torch.where(counts, middle, low), torch.where(counts, high, middle)
        return low


class Search:
    """Proposals that follow what their points have found.

    Kernels are put around the points of all rounds so far, weighed against the mixture of all their proposals: a round whose own weights
    look even may just have missed the peak.
    """

    def __init__(self, frames: Frames, generator: torch.Generator | None):
        self.frames, self.generator = frames, generator
        self.proposals = [Proposal(frames)]
        self.rounds: list[Points] = []

    def draw(self, count: int) -> Points:
        """Points from the latest proposal."""
        return self.proposals[-1].weigh(self.proposals[-1].draw(count, self.generator))

    def learn(self, points: Points) -> None:
        """Make the next proposal with these points, drawn from the latest, too."""
        self.rounds.append(points)
        every = Points(*(torch.cat([getattr(r, f.name) for r in self.rounds]) for f in fields(Points)))
        parts = [
            p.log_density(every.q, every.log_ratios) + math.log(len(r.q)) for p, r in zip(self.proposals, self.rounds)
        ]
        every = replace(every, log_weight=every.log_total - torch.stack(parts).logsumexp(0))
        # where few points count they would be few different centres: a power of the weights lets more of them count
        index = every.pick(KERNELS, self.generator, every.power(KERNELS / 4))
        centres = every.q.gather(0, index.unsqueeze(-1).expand(*index.shape, 4))
        self.proposals.append(Proposal(self.frames, KernelMixture(centres, WIDTH * crowding(centres))))

    def run(self, trial: int, samples: int) -> Points:
        """Rounds of trial points until enough of them count, and then the points to keep."""
        for _ in range(ROUNDS):
            points = self.draw(trial)
            share = points.effective / trial
            # cells are rough, and of a product of rough densities no mixture of kernels makes more than a part count
            settled = len(self.rounds) > 1 and (share >= FAIR) & (points.effective <= self.rounds[-1].effective)
            if bool((points.impossible | (share >= ENOUGH) | settled).all()):
                break
            self.learn(points)
        points = self.draw(samples)
        for _ in range(AGAIN):
            # more points may have found a peak that the trials did not
            if bool((points.impossible | (points.effective >= FAIR * samples)).all()):
                break
            self.learn(points)
            points = self.draw(samples)
        return points
