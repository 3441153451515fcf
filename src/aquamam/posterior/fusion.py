r"""One posterior from several frames or cameras whose relative rotations are known.

Frame i sees the rotation $R_i = D_i R$ of one object, $D_i$ known. Each posterior $p_i$ comes from a uniform prior $u = π^{-2}$, so by Bayes

$$p(R) = \frac{u}{Z} \prod_i \frac{p_i(D_i R)}{u}, \qquad Z = \int u \prod_i \frac{p_i(D_i R)}{u} \, dR.$$

Every factor is exact; only the constant Z is estimated, by importance sampling. Points come from all frames in equal parts, so that the
weight (product over mixture) is bounded by the densities of the other frames. Where few of the points matter, the proposal moves: kernels
around the best points, by tempered weights at first, join the mixture until enough points count. The last set of points is drawn afresh
from what was learnt and tells Z, its standard error, and how many points count. Z is also a Bayes factor: how much likelier the frames
are together, as views of one rotation, than as views of unrelated ones. Far below 1 they contradict each other.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.directional import draw_uniform
from aquamam.geometry.rotations import LOG_UNIFORM, as_unit_quat, chordal_mean
from aquamam.posterior.distribution import Estimate, RotationDistribution, TopK
from aquamam.posterior.importance import TRIAL, Frames, Points, Proposal, Search
from aquamam.posterior.modes import angles_deg

SAMPLES = 2048  # points behind a fused posterior
FEW = 50  # points that count: with fewer, an error estimate is itself a guess
CONTRADICTION = -3.0  # nats: unrelated rotations explain the frames twenty times better than one rotation
BALL_DEG = 5.0  # the places of topk
PLACES = 1000  # points that topk looks at


class FusionWarning(UserWarning):
    """A fused posterior that should not be relied on; the sentence says why."""


class FusedPosterior(RotationDistribution):
    """The product of posteriors, as a posterior again: densities are exact up to the constant, whose error is told.

    Samples are points picked by their weights, which then take Metropolis steps with fresh proposals.
    """

    def __init__(self, proposal: Proposal, points: Points, steps: int = 2):
        super().__init__(points.q.shape[1])
        self._proposal, self._points, self._steps = proposal, points, steps
        count, effective = len(points.q), points.effective
        # how many points count, of how many
        self.effective_samples: Float64[Tensor, "batch"] = effective
        self.samples = count
        log_z = points.log_weight.logsumexp(0) - math.log(count)
        error = ((1 / effective - 1 / count).clamp_min(0) * count / max(count - 1, 1)).sqrt()
        # ln Z with its standard error: the only error of `log_prob`, and the Bayes factor of one rotation against unrelated ones
        self.agreement = Estimate(log_z, error)

    @property
    def frames(self) -> int:
        """How many factors the product has."""
        return self._points.log_ratios.shape[1]

    @property
    def votes(self) -> Float64[Tensor, "frames batch"]:
        """Nats by which each frame finds the fused answer likelier than chance, on average; a negative one is the odd one out."""
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
        value, error = (x.tolist() for x in self.agreement)
        odd = self.votes.argmin(0).tolist()
        said = []
        for i, (z, e, n, bad) in enumerate(
            zip(value, error, self.effective_samples.tolist(), self.contradictory.tolist())
        ):
            what = "the frames contradict each other" if bad else "the frames agree"
            blame = f", frame {odd[i]} most of all" if bad and self.frames > 2 else ""
            few = "; too few to rely on that error" if n < FEW else ""
            said.append(f"{what} ({z:+.1f} nats{blame}); ln p ± {e:.3f} from {n:.0f} points that count{few}")
        return said

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        frames = self._proposal.frames
        return frames.total(frames.log_ratios(q.double())) + (LOG_UNIFORM - self.agreement.value)

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        index = self._points.pick(count, generator)
        q = self._points.q.gather(0, index.unsqueeze(-1).expand(*index.shape, 4))
        log_weight = self._points.log_weight.gather(0, index)
        for _ in range(self._steps if count else 0):
            new = self._proposal.weigh(self._proposal.draw(count, generator, even=False))
            accepted = draw_uniform(index.shape, generator, q.device).log() < new.log_weight - log_weight
            q = torch.where(accepted.unsqueeze(-1), new.q, q)
            log_weight = torch.where(accepted, new.log_weight, log_weight)
        return q.float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        best = self._points.log_total.argmax(0)
        return self._points.q[best, torch.arange(self._batch, device=best.device)].float()

    def entropy(self, samples: int = 1024, *, generator: torch.Generator | None = None) -> Estimate:  # type: ignore[override]
        """Differential entropy in nats (volume pi^2), with a standard error that contains the constant's.

        From the weighted points at hand: `samples` and `generator` change nothing.
        """
        share, count = self._points.share, self.samples
        log_total = torch.where(share > 0, self._points.log_total, 0.0)
        mean = (share * log_total).sum(0)
        value = self.agreement.value - mean - LOG_UNIFORM
        influence = count * share * (1 - (log_total - mean))
        error = influence.std(0) / count**0.5
        return Estimate(*(x.expand(self.batch_shape) if self.batch_shape else x[0] for x in (value, error)))

    def topk(self, k: int) -> TopK:
        """Up to k places, balls of five degrees, heaviest first and each without what heavier ones hold: their mean rotations and the
        log-probabilities of the balls; -inf where an image has fewer than another."""
        if k < 1:
            raise InputError(f"k must be a positive whole number, got {k}.")
        index = self._points.pick(PLACES, torch.Generator().manual_seed(0))
        q = self._points.q.gather(0, index.unsqueeze(-1).expand(*index.shape, 4))
        places = [heaviest_balls(column, BALL_DEG, k) for column in q.unbind(1)]
        found = max((len(share) for _, share in places), default=0)
        where, log_p = q[:1].expand(found, -1, 4).clone(), q.new_full((found, self._batch), -torch.inf)
        for i, (centre, share) in enumerate(places):
            where[: len(share), i], log_p[: len(share), i] = centre, share.log()
        shape = (found, *([1] * (len(self.batch_shape) - 1)), self._batch)
        full = (found, *self.batch_shape)
        if not self.batch_shape:
            return TopK(where[:, 0].float(), log_p[:, 0])
        return TopK(where.reshape(*shape, 4).expand(*full, 4).float(), log_p.reshape(shape).expand(full))


def heaviest_balls(
    q: Float64[Tensor, "n 4"], radius_deg: float | int, k: int
) -> tuple[Float64[Tensor, "places 4"], Float64[Tensor, "places"]]:
    """Up to k balls, each the one around a point that holds most of the points that are left: mean rotations and shares of points."""
    near = angles_deg(q, q) <= radius_deg
    left = torch.ones(len(q), dtype=torch.bool, device=q.device)
    centres: list[Tensor] = []
    shares: list[Tensor] = []
    while len(centres) < k and bool(left.any()):
        held = (near & left).sum(1) * left
        members = near[held.argmax()] & left
        centres.append(chordal_mean(q[members]))
        shares.append(members.double().mean())
        left = left & ~members
    return (torch.stack(centres), torch.stack(shares)) if centres else (q[:0], q[:0, 0])


def fuse(
    posteriors: RotationDistribution | Sequence[RotationDistribution],
    relative_rotations: Any = None,
    *,
    weights: Sequence[float | int] | None = None,
    samples: int = SAMPLES,
    conflict: str = "warn",
    generator: torch.Generator | None = None,
) -> FusedPosterior:
    """The posterior of one rotation given several frames or cameras, $u \\prod_i p_i(D_i R) / u$, normalised.

    posteriors: one for each frame, all of B images (the same B objects) or of one; or a single posterior of n images, which are the n
        frames of one object, as `model(frames)` gives it.
    relative_rotations: quaternions xyzw of either sign, (n, 4) or (n, B, 4). The i-th is D_i with R_i = D_i R: it takes the camera
        coordinates of the reference to those of frame i, where R_i, object to camera i, is what posterior i is about. The result is about
        the reference's R; if that is frame 0, D_0 is the identity. For an object that turns in front of one camera D_i is its turn
        since the reference, in camera coordinates; for cameras with orientations C_i (world to camera) it is C_i C_0^-1. None: all equal.
    weights: exponents of the frames' likelihoods, 1 each; less than 1 for frames that err alike (neighbours in a video, say).
    samples: points behind the result; its error falls with their square root.
    conflict: "warn" when frames contradict each other or too few points count, "raise" an InputError, or "keep" silent. The result's
        `contradictory`, `reliable`, `votes`, `agreement` and `statements()` tell in any case.
    """
    if conflict not in ("warn", "raise", "keep"):
        raise InputError(f"conflict must be warn, raise or keep, got {conflict!r}.")
    frames = _frames(posteriors, relative_rotations, weights)
    count = len(frames.relative)
    if samples < max(100, 4 * count):
        raise InputError(
            f"samples must be at least {max(100, 4 * count)} for {count} frames, got {samples}; the default is {SAMPLES}."
        )
    with torch.no_grad():
        search = Search(frames, generator)
        points = search.run(min(samples, max(TRIAL, 16 * count)), samples)
    if bool(points.impossible.any()):
        which = points.impossible.nonzero().flatten().tolist()
        raise InputError(
            f"frames must leave a rotation that all allow, and those of object {which[0]} leave none; check the relative rotations."
        )
    fused = FusedPosterior(search.proposals[-1], points)
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
    stacked = isinstance(posteriors, RotationDistribution)
    each = (posteriors,) if stacked else tuple(posteriors)
    if not each or not all(isinstance(p, RotationDistribution) for p in each):
        raise InputError("fuse takes posteriors, one or more; models return them, as in fuse([model(a), model(b)], D).")
    if any(len(p.batch_shape) != 1 for p in each):
        shapes = ", ".join(str(tuple(p.batch_shape)) for p in each)
        raise InputError(f"posteriors to fuse must have flat batches, got {shapes}.")
    count = each[0].batch_shape[0] if stacked else len(each)
    batch = 1 if stacked else max((p.batch_shape[0] for p in each), key=lambda n: -1 if n == 1 else n)
    if count == 0 or not (stacked or all(p.batch_shape[0] in (1, batch) for p in each)):
        sizes = ", ".join(str(p.batch_shape[0]) for p in each)
        raise InputError(f"posteriors to fuse must be of as many images each, or of one, got {sizes}.")
    if not stacked:
        each = tuple(p.expand((batch,)) for p in each)
    device = each[0].sample((0,)).device
    if relative_rotations is None:
        relative = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64).expand(count, 1, 4)
    else:
        if isinstance(relative_rotations, (list, tuple)) and any(isinstance(d, Tensor) for d in relative_rotations):
            relative_rotations = torch.stack(torch.broadcast_tensors(*map(torch.as_tensor, relative_rotations)))
        relative = as_unit_quat(relative_rotations, "relative_rotations")
        relative = relative[:, None] if relative.ndim == 2 else relative
    if relative.ndim != 3 or relative.shape[0] != count or relative.shape[1] not in (1, batch):
        raise InputError(
            f"relative_rotations must be ({count}, 4) or ({count}, {batch}, 4), one for each frame, got {tuple(relative.shape)}."
        )
    powers = torch.ones(count, dtype=torch.float64) if weights is None else torch.as_tensor(weights).double()
    if powers.shape != (count,) or not bool(((powers >= 0) & (powers < torch.inf)).all()):
        raise InputError(f"weights must be {count} numbers of at least 0, got {weights}; 1 takes a frame as it is.")
    relative = relative.expand(count, batch, 4).to(device)
    return Frames(each, relative, powers[:, None].to(device), stacked)
