r"""One posterior from several frames or cameras whose relative rotations are known.

Frame i sees the rotation $R_i = D_i R$ of one object, $D_i$ known. Each posterior $p_i$ comes from a uniform prior
$u = π^{-2}$, so by Bayes

$$p(R) = \frac{u}{Z} \prod_i \frac{p_i(D_i R)}{u}, \qquad Z = \int u \prod_i \frac{p_i(D_i R)}{u} \, dR.$$

Every factor is exact; only the constant Z is estimated, by importance sampling. Points come from all frames in equal
parts, so that a weight, product over mixture, is bounded by the densities of the other frames. Where few of the
points matter, kernels around the best ones join the mixture, by tempered weights at first. The last points are drawn
afresh and tell Z, its standard error, and how many points count. Z is also a Bayes factor: how much likelier the
frames are as views of one rotation than of unrelated ones. Far below 1 they contradict each other.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from aquamam.errors import InputError, require
from aquamam.geometry.directional import draw_category, draw_uniform
from aquamam.geometry.rotations import IDENTITY, LOG_UNIFORM, as_unit_quat, chordal_mean, inverse, multiply
from aquamam.posterior.distribution import Estimate, Generator, RotationDistribution, TopK
from aquamam.posterior.kernel_mixture import KernelMixture, neighbour_distance
from aquamam.posterior.modes import angles_deg

SAMPLES = 2048  # points behind a fused posterior
TRIAL = 512  # points of a round that looks for a proposal
ROUNDS = 8  # of looking, at most
ENOUGH, FAIR = 0.3, 0.1  # shares of points that count at which no more is looked for: at once, or if it no longer grows
AGAIN = 2  # times that the points to keep are drawn anew where they turn out to be few
KERNELS = 256  # of a proposal
WIDTH = 0.6  # of a kernel, in distances to its twelfth neighbour
OF_FRAMES, OF_UNIFORM = 0.25, 0.05  # shares in a proposal with kernels
FEW = 50  # points that count: with fewer, an error estimate is itself a guess
CONTRADICTION = -3.0  # nats: unrelated rotations explain the frames twenty times better than one rotation
METROPOLIS = 2  # steps of a sample
BALL_DEG, PLACES = 5.0, 1000  # the places of topk, and the points that it looks at

Rotations = Float64[Tensor, "points batch 4"]
Ratios = Float64[Tensor, "points frames batch"]
Logs = Float64[Tensor, "points batch"]


class FusionWarning(UserWarning):
    """A fused posterior that should not be relied on; the sentence says why."""


@dataclass(frozen=True, eq=False)
class Frames:
    """The factors of the product: posteriors of B images each."""

    posteriors: tuple[RotationDistribution, ...]
    relative: Float64[Tensor, "frames batch 4"]
    weights: Float64[Tensor, "frames 1"]

    def log_ratios(self, q: Rotations) -> Ratios:
        r"""$\ln p_i(D_i q) / u$ for each frame."""
        log_p = [p.log_prob(multiply(d, q)) for p, d in zip(self.posteriors, self.relative)]
        return torch.stack(log_p, 1).double() - LOG_UNIFORM

    def total(self, log_ratios: Ratios) -> Logs:
        """Log of the product over the uniform density; a frame of weight 0 has no say even where it forbids."""
        return torch.where(self.weights == 0, 0.0, self.weights * log_ratios).sum(1)

    def sample(self, count: int, generator: Generator) -> Rotations:
        """Points from the even mixture of all frames, as rotations of the reference."""
        each = math.ceil(count / len(self.posteriors))
        drawn = torch.stack([p.sample((each,), generator=generator) for p in self.posteriors], 1)
        return _shuffled(multiply(inverse(self.relative), drawn.double()).flatten(0, 1), generator)[:count]


def _shuffled(q: Rotations, generator: Generator) -> Rotations:
    return q.take_along_dim(draw_uniform(q.shape[:2], generator, q.device).argsort(0)[..., None], 0)


class Points(NamedTuple):
    """Weighted points; logarithms are of ratios to the uniform density."""

    q: Rotations
    log_ratios: Ratios
    log_total: Logs
    log_weight: Logs

    @property
    def share(self) -> Logs:
        return self.log_weight.softmax(0)

    @property
    def impossible(self) -> Bool[Tensor, "batch"]:
        """Whether no point is allowed by all frames."""
        return ~(self.log_weight > -torch.inf).any(0)

    @property
    def effective(self) -> Float64[Tensor, "batch"]:
        r"""Kish's number of points that count, $1 / \sum_k \bar w_k^2$."""
        return 1 / self.share.square().sum(0).clamp_min(1e-300)

    def pick(self, count: int, generator: Generator, power: Tensor | float = 1.0) -> Tensor:
        """Indices (count, batch) drawn by the weights, or by a power of them."""
        return draw_category((power * self.log_weight).log_softmax(0).T, count, generator)

    def power(self, wanted: float) -> Float64[Tensor, "batch"]:
        """The largest of 1, 0.8, 0.8^2, ... as a power of the weights under which so many points count."""
        powers = 0.8 ** torch.arange(60, dtype=torch.float64, device=self.q.device)
        counts = torch.stack([1 / (p * self.log_weight).softmax(0).square().sum(0) for p in powers])
        counts[-1] = torch.inf
        return powers[(counts >= wanted).int().argmax(0)]


@dataclass(frozen=True, eq=False)
class Proposal:
    """Where points come from: the frames, and kernels with uniform rotations among them if there are any."""

    frames: Frames
    kernels: KernelMixture | None = None

    def draw(self, count: int, generator: Generator) -> Points:
        """Points with the weights that make them stand for the product."""
        if self.kernels is None:
            q = self.frames.sample(count, generator)
        else:  # shares are taken exactly, and what rounding leaves at random
            few = int(OF_FRAMES * count + float(draw_uniform((), generator, self.kernels.kappa.device)))
            parts = [self.frames.sample(few, generator), self.kernels.sample((count - few,), generator=generator)]
            q = _shuffled(torch.cat(parts), generator)
        ratios = self.frames.log_ratios(q)
        log_total = self.frames.total(ratios)
        return Points(q, ratios, log_total, log_total - self.log_density(q, ratios))

    def log_density(self, q: Rotations, log_ratios: Ratios) -> Logs:
        """With respect to the uniform distribution."""
        mixture = log_ratios.logsumexp(1) - math.log(log_ratios.shape[1])
        if self.kernels is None:
            return mixture
        kernels = self.kernels.log_prob(q) - LOG_UNIFORM
        return torch.logaddexp(mixture + math.log(OF_FRAMES), kernels + math.log1p(-OF_FRAMES))


def search(frames: Frames, trial: int, samples: int, generator: Generator) -> tuple[Proposal, Points]:
    """A proposal that follows what its points have found, and the points to keep.

    Rounds of trial points go on until enough of them count. Kernels are put around the points of all rounds so far,
    weighed against the mixture of all their proposals: a round whose own weights look even may have missed the peak.
    """
    proposals, rounds = [Proposal(frames)], []

    def learn(points: Points) -> None:
        """Make the next proposal with these points, drawn from the latest, too."""
        rounds.append(points)
        every = Points(*map(torch.cat, zip(*rounds)))
        parts = [p.log_density(every.q, every.log_ratios) + math.log(len(r.q)) for p, r in zip(proposals, rounds)]
        every = every._replace(log_weight=every.log_total - torch.stack(parts).logsumexp(0))
        # where few points count they would be few different centres: a power of the weights lets more of them count
        centres = every.q.take_along_dim(every.pick(KERNELS, generator, every.power(KERNELS / 4))[..., None], 0)
        kernels = KernelMixture(centres, WIDTH * neighbour_distance(centres), OF_UNIFORM / (1 - OF_FRAMES))
        proposals.append(Proposal(frames, kernels))

    for _ in range(ROUNDS):
        points = proposals[-1].draw(trial, generator)
        share = points.effective / trial
        # cells are rough, and of a product of rough densities no mixture of kernels makes more than a part count
        settled = len(rounds) > 1 and (share >= FAIR) & (points.effective <= rounds[-1].effective)
        if bool((points.impossible | (share >= ENOUGH) | settled).all()):
            break
        learn(points)
    points = proposals[-1].draw(samples, generator)
    for _ in range(AGAIN):  # more points may have found a peak that the trials did not
        if bool((points.impossible | (points.effective >= FAIR * samples)).all()):
            break
        learn(points)
        points = proposals[-1].draw(samples, generator)
    return proposals[-1], points


class FusedPosterior(RotationDistribution):
    """The product of posteriors, as a posterior again: densities are exact up to the constant, whose error is told.

    Samples are points picked by their weights, which then take Metropolis steps with fresh proposals.
    """

    def __init__(self, proposal: Proposal, points: Points):
        super().__init__(points.q.shape[1])
        self._proposal, self._points = proposal, points
        # how many points count, of how many
        self.samples, self.effective_samples = len(points.q), points.effective
        log_z = points.log_weight.logsumexp(0) - math.log(self.samples)
        variance = (1 / points.effective - 1 / self.samples).clamp_min(0) * self.samples / max(self.samples - 1, 1)
        # ln Z with its standard error: the only error of `log_prob`, and the Bayes factor of one rotation
        self.agreement = Estimate(log_z, variance.sqrt())

    @property
    def votes(self) -> Float64[Tensor, "frames batch"]:
        """Nats by which each frame finds the fused answer likelier than chance; a negative one is the odd one out."""
        share = self._points.share.unsqueeze(1)
        return torch.where(share > 0, share * self._points.log_ratios, 0.0).sum(0)

    @property
    def contradictory(self) -> Bool[Tensor, "batch"]:
        """Whether unrelated rotations explain the frames clearly better than one rotation does."""
        return self.agreement.value + 2 * self.agreement.standard_error.clamp_max(0.5) < CONTRADICTION

    @property
    def reliable(self) -> Bool[Tensor, "batch"]:
        """Whether the frames agree and enough points count for the stated error to mean something."""
        return ~self.contradictory & (self.effective_samples >= FEW)

    def statements(self) -> list[str]:
        """One sentence an image: do the frames agree, and how large is the error."""
        votes = self.votes
        columns = (*self.agreement, self.effective_samples, self.contradictory, votes.argmin(0))
        said = []
        for z, error, count, bad, odd in zip(*(column.tolist() for column in columns)):
            what = "the frames contradict each other" if bad else "the frames agree"
            blame = f", frame {odd} most of all" if bad and len(votes) > 2 else ""
            few = "; too few to rely on that error" if count < FEW else ""
            said.append(f"{what} ({z:+.1f} nats{blame}); ln p ± {error:.3f} from {count:.0f} points that count{few}")
        return said

    def _log_prob(self, q: Tensor) -> Logs:
        frames = self._proposal.frames
        return frames.total(frames.log_ratios(q.double())) + (LOG_UNIFORM - self.agreement.value)

    def _sample(self, count: int, generator: Generator) -> Tensor:
        index = self._points.pick(count, generator)
        q, log_weight = self._points.q.take_along_dim(index[..., None], 0), self._points.log_weight.gather(0, index)
        for _ in range(METROPOLIS if count else 0):
            new = self._proposal.draw(count, generator)
            accepted = draw_uniform(index.shape, generator, q.device).log() < new.log_weight - log_weight
            q = torch.where(accepted.unsqueeze(-1), new.q, q)
            log_weight = torch.where(accepted, new.log_weight, log_weight)
        return q.float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        return self._points.q.take_along_dim(self._points.log_total.argmax(0)[None, :, None], 0)[0].float()

    def entropy(self, samples: int = 1024, *, generator: Generator = None) -> Estimate:  # type: ignore[override]
        """Differential entropy in nats (volume pi^2), with a standard error that contains the constant's.

        From the weighted points at hand: `samples` and `generator` change nothing.
        """
        share, count = self._points.share, self.samples
        log_total = torch.where(share > 0, self._points.log_total, 0.0)
        mean = (share * log_total).sum(0)
        value = self.agreement.value - mean - LOG_UNIFORM
        influence = count * share * (1 - (log_total - mean))
        return Estimate(value.expand(self.batch_shape), (influence.std(0) / count**0.5).expand(self.batch_shape))

    def _topk(self, k: int) -> TopK:
        """Up to k places, balls of five degrees, heaviest first and each without what heavier ones hold: their mean
        rotations and the log-probabilities of the balls; -inf where an image has fewer than another."""
        index = self._points.pick(PLACES, torch.Generator().manual_seed(0))
        q = self._points.q.take_along_dim(index[..., None], 0)
        places = [heaviest_balls(column, BALL_DEG, k) for column in q.unbind(1)]
        found = max((len(share) for _, share in places), default=0)
        where, log_p = q[:1].repeat(found, 1, 1), q.new_full((found, self._batch), -torch.inf)
        for i, (centre, share) in enumerate(places):
            where[: len(share), i], log_p[: len(share), i] = centre, share.log()
        return TopK(where.float(), log_p)


def heaviest_balls(
    q: Float64[Tensor, "n 4"], radius_deg: float | int, k: int
) -> tuple[Float64[Tensor, "places 4"], Float64[Tensor, "places"]]:
    """Up to k balls, each the one around a point that holds most of the points left: mean rotations and shares."""
    near = angles_deg(q, q) <= radius_deg
    left = torch.ones(len(q), dtype=torch.bool, device=q.device)
    centres, shares = [q[:0]], [q[:0, 0]]
    while len(centres) <= k and bool(left.any()):
        held = (near & left).sum(1) * left
        members = near[held.argmax()] & left
        centres.append(chordal_mean(q[members])[None])
        shares.append(members.double().mean()[None])
        left = left & ~members
    return torch.cat(centres), torch.cat(shares)


def fuse(
    posteriors: RotationDistribution | Sequence[RotationDistribution],
    relative_rotations: Any = None,
    *,
    weights: Sequence[float | int] | None = None,
    samples: int = SAMPLES,
    conflict: str = "warn",
    generator: Generator = None,
) -> FusedPosterior:
    """The posterior of one rotation given several frames or cameras, $u \\prod_i p_i(D_i R) / u$, normalised.

    posteriors: one for each frame, all of B images (the same B objects) or of one; or a single posterior of n images,
        which are the n frames of one object, as `model(frames)` gives it.
    relative_rotations: quaternions xyzw of either sign, (n, 4) or (n, B, 4). The i-th is D_i with R_i = D_i R: it takes
        the camera coordinates of the reference to those of frame i, where R_i, object to camera i, is what posterior i
        is about (docs/tracking.md). None: all equal.
    weights: exponents of the frames' likelihoods, 1 each; less than 1 for frames with common errors.
    samples: points behind the result; its error falls with their square root.
    conflict: "warn" when frames contradict each other or too few points count, "raise" an InputError, or "keep" silent.
    """
    require(conflict in ("warn", "raise", "keep"), f"conflict must be warn, raise or keep, got {conflict!r}.")
    frames = _frames(posteriors, relative_rotations, weights)
    count = len(frames.relative)
    least = max(100, 4 * count)
    require(samples >= least, f"samples must be at least {least} for {count} frames, got {samples}; try {SAMPLES}.")
    with torch.no_grad():
        proposal, points = search(frames, min(samples, max(TRIAL, 16 * count)), samples, generator)
    for i in points.impossible.nonzero().flatten().tolist():
        told = f"those of object {i} leave none; check the relative rotations."
        raise InputError(f"frames must leave a rotation that all allow, and {told}")
    fused = FusedPosterior(proposal, points)
    doubtful = (~fused.reliable).nonzero().flatten().tolist()
    if doubtful and conflict != "keep":
        more = f" (and {len(doubtful) - 1} more)" if len(doubtful) > 1 else ""
        hint = "check the relative rotations" if bool(fused.contradictory[doubtful[0]]) else "try more samples"
        sentence = f"object {doubtful[0]}{more}: {fused.statements()[doubtful[0]]}; {hint}."
        if conflict == "raise":
            raise InputError(sentence)
        warnings.warn(sentence, FusionWarning, stacklevel=2)
    return fused


def _frames(posteriors: Any, relative_rotations: Any, weights: Any) -> Frames:
    """The factors, checked."""
    if isinstance(posteriors, RotationDistribution):  # the images are frames of one object
        flat, images = len(posteriors.batch_shape) == 1, range(posteriors.batch_shape.numel())
        posteriors = [posteriors._some(slice(i, i + 1)) for i in images] if flat else [posteriors]
    each = tuple(posteriors)
    good = len(each) > 0 and all(isinstance(p, RotationDistribution) for p in each)
    require(good, "fuse takes posteriors, one or more; models return them, as in fuse([model(a), model(b)], D).")
    shapes = [tuple(p.batch_shape) for p in each]
    fits = all(len(shape) == 1 for shape in shapes) and len({*shapes} - {(1,)}) <= 1
    rule = "posteriors to fuse must have flat batches of as many images each, or of one"
    require(fits, f"{rule}, got {', '.join(map(str, shapes))}.")
    count, (batch,) = len(each), max(shapes, key=lambda shape: shape != (1,))
    still = IDENTITY.expand(count, 4)
    relative = as_unit_quat(still if relative_rotations is None else relative_rotations, "relative_rotations")
    relative = relative[:, None] if relative.ndim == 2 else relative
    fits = relative.ndim == 3 and relative.shape[0] == count and relative.shape[1] in (1, batch)
    rule = f"relative_rotations must be ({count}, 4) or ({count}, {batch}, 4), one for each frame"
    require(fits, f"{rule}, got {tuple(relative.shape)}.")
    powers = torch.ones(count, dtype=torch.float64) if weights is None else torch.as_tensor(weights).double()
    fits = powers.shape == (count,) and bool(((powers >= 0) & (powers < torch.inf)).all())
    require(fits, f"weights must be {count} numbers of at least 0, got {weights}; 1 takes a frame as it is.")
    device = each[0].sample((0,)).device
    expanded = tuple(p.expand((batch,)) for p in each)
    return Frames(expanded, relative.expand(count, batch, 4).to(device), powers[:, None].to(device))
