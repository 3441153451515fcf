"""Posteriors: distributions over rotations as `torch.distributions`, with no network inside.

`RotationDistribution` is the interface that every model of the package returns; AQuaMaM's is in `sentences`. What is
known besides the network's answer is added by distributions that wrap distributions: `Calibrated`, `Rotated` and
`EqualViews`.
"""

import copy
import math
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributions import Distribution, constraints

from aquamam.errors import InputError, require
from aquamam.geometry.directional import Generator
from aquamam.geometry.rotations import LOG_UNIFORM, as_unit_quat, convert_log_density, inverse, multiply, random_quat
from aquamam.posterior.calibration import Calibration, ConformalScores, ViewClasses
from aquamam.posterior.regions import Estimate, Region, find_region

# Largest working set of one chunk of rotations, in floats: about the size of a last-level cache times a few.
CHUNK_FLOATS = 16_000_000
Images = Int64[Tensor, "some"] | slice  # some images of a batch
Rotations = Float[Tensor, "rotations batch 4"]  # xyzw
Densities = Float[Tensor, "rotations batch"]


def least_expected_error(q: Float[Tensor, "samples *batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Of an image's samples the one whose mean geodesic angle to all of them is smallest."""
    require(len(q) > 0, "the sample of least expected error needs at least one sample, got none; 256 is usual.")
    each = q.reshape(len(q), -1, 4).transpose(0, 1)  # (images, samples, 4)
    # |p · q| orders pairs as the angle does and is one matrix product; what acos loses near zero is under 0.1 degrees
    best = torch.acos((each @ each.mT).abs().clamp_max(1)).mean(-1).argmin(-1)
    return each[torch.arange(len(each), device=q.device), best].reshape(q.shape[1:])


class TopK(NamedTuple):
    """The best cells: quaternions (xyzw) and the log-probabilities of the cells, best first."""

    quaternions: Float[Tensor, "k *batch 4"]
    log_probs: Float[Tensor, "k *batch"]


class RotationDistribution(Distribution):
    """A batch of distributions over rotations: quaternions xyzw of either sign, log densities for volume pi^2.

    A subclass tells `_log_prob`, `_sample`, `_mode` and `_some` for quaternions laid out as (rotations, batch, 4), and
    with discrete cells `_topk` and `_cell`; shapes, signs, validation, measures, chunks and estimates are settled here.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.independent(constraints.real, 1)
    has_rsample = False

    def __init__(self, batch: int, *, ceiling: float = math.inf, row_floats: int = 1024):
        self._copies = 1  # how often each image occurs in an expanded view
        self._batch = batch  # images behind the distribution; batch_shape may be an expanded view of them
        self.ceiling = ceiling  # the largest log density that it can express
        self.row_floats = row_floats  # rough size of the work on one rotation of one image
        super().__init__(torch.Size([batch]), torch.Size([4]), validate_args=False)

    def _log_prob(self, q: Rotations) -> Densities:
        raise NotImplementedError

    def _sample(self, count: int, generator: Generator) -> Rotations:
        raise NotImplementedError

    def _mode(self) -> Float[Tensor, "batch 4"]:
        raise NotImplementedError

    def _some(self, images: Images) -> "RotationDistribution":
        """The distributions of some of the images."""
        raise NotImplementedError

    def _topk(self, k: int) -> TopK:
        name = type(self.unwrapped).__name__
        raise InputError(f"topk needs a model with discrete cells, and {name} has none; draw samples instead.")

    def _cell(self, q: Float[Tensor, "*batch 4"]) -> tuple[Int64[Tensor, "*batch code"], Float[Tensor, "*batch"]]:
        """The cell of each rotation, and the log density there if the cell had all probability."""
        raise NotImplementedError(f"{type(self).__name__} has no cells.")

    @property
    def unwrapped(self) -> "RotationDistribution":
        """The network's own distribution, without what wraps it."""
        return self

    @property
    def image_state(self) -> Float[Tensor, "batch dim"]:
        """What the network made of each image, by which typicality is judged."""
        raise NotImplementedError(f"{type(self).__name__} has no encoder whose states could be judged.")

    @property
    def conformal_scores(self) -> ConformalScores | None:
        """Of held-out truths, where they are known."""
        return None

    @property
    def typicality(self) -> Float[Tensor, "batch"] | None:
        """For each image a p-value of being like those that the model was trained on, where that is known."""
        return None

    def log_prob(self, value: Tensor, measure: str = "pi2") -> Tensor:
        """Log density of unit quaternions (xyzw, either sign), shape (*sample, *batch, 4) -> (*sample, *batch).

        With respect to volume pi^2 (uniform = -2.2895) unless `measure` asks for "1" or "8pi2".
        """
        q, sample_shape = as_unit_quat(value), value.shape[: max(0, value.ndim - 1 - len(self.batch_shape))]
        try:
            q = q.expand(*sample_shape, *self.batch_shape, 4)
        except RuntimeError:
            rule = f"quaternions must have shape (*sample, *batch, 4) with batch {tuple(self.batch_shape)}"
            told = f"{rule}, got {tuple(value.shape)}; for many rotations of each image try q[:, None, :]."
            raise InputError(told) from None
        # the images are the last axis of the batch shape, or there is one image: either way this is the layout
        log_p = self._log_probs(q.reshape(sample_shape.numel() * self._copies, self._batch, 4))
        return convert_log_density(log_p.reshape(sample_shape + self.batch_shape).to(value.dtype), to=measure)

    def sample(self, sample_shape: Any = (), *, generator: Generator = None) -> Tensor:
        """Draw quaternions (xyzw, q_w >= 0), shape (*sample, *batch, 4); a plain number n means (n,)."""
        sample_shape = torch.Size((sample_shape,) if isinstance(sample_shape, int) else sample_shape)
        require(min(sample_shape, default=0) >= 0, f"sample shapes must not be negative, got {tuple(sample_shape)}.")
        with torch.no_grad():
            q = self._sample(sample_shape.numel() * self._copies, generator)
        return q.reshape(self._extended_shape(sample_shape))

    @property
    def mode(self) -> Tensor:
        """The prediction, shape (*batch, 4), xyzw."""
        with torch.no_grad():
            return self._mode().expand(*self.batch_shape, 4)

    def predict(self, strategy: str = "greedy", *, samples: int = 256, generator: Generator = None) -> Tensor:
        """One rotation for each image, shape (*batch, 4): the greedy sentence (the paper's), the best of a beam of 16,
        or the sample with the least expected geodesic error under the posterior ("expected")."""
        strategies = ("greedy", "beam", "expected")
        require(strategy in strategies, f"strategy must be one of {', '.join(strategies)}, got {strategy!r}.")
        if strategy == "expected":
            return least_expected_error(self.sample((samples,), generator=generator))
        return self.mode if strategy == "greedy" else self.topk(16).quaternions[0]

    def topk(self, k: int) -> TopK:
        """The k most probable cells that a beam of width k finds, with their log-probabilities."""
        require(k >= 1, f"k must be a positive whole number, got {k}.")
        with torch.no_grad():
            q, log_p = self._topk(k)
        first, shape = [1] * (len(self.batch_shape) - 1), (len(q), *self.batch_shape)
        q, log_p = q.reshape(len(q), *first, self._batch, 4), log_p.reshape(len(q), *first, self._batch)
        return TopK(q.expand(*shape, 4), log_p.expand(shape))

    def entropy(self, samples: int = 1024, *, generator: Generator = None) -> Estimate:  # type: ignore[override]
        """Differential entropy in nats (volume pi^2) as a Monte Carlo mean of -log p, with its standard error."""
        require(samples >= 2, f"samples must be at least 2 for a standard error, got {samples}.")
        with torch.no_grad():
            surprise = -self.log_prob(self.sample((samples,), generator=generator))
        return Estimate(surprise.mean(0), surprise.std(0) / samples**0.5)

    def region(self, level: float = 0.9, **options: Any) -> Region:
        """The highest-density regions that hold the truth with this probability, if the model is calibrated and the
        image like the held-out ones, and else this share of the posterior; options of `regions.find_region`."""
        return find_region(self, level, **options)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "RotationDistribution":
        """A view with a larger batch shape; nothing is copied."""
        torch.empty(self.batch_shape).expand(batch_shape)  # raises what torch raises when shapes do not fit
        new = copy.copy(self)
        new._batch_shape = torch.Size(batch_shape)
        new._copies = new._batch_shape.numel() // self._batch if self._batch else 1
        return new

    def _repr_html_(self) -> str:
        """What a notebook shows; pictures stand below posteriors and are imported when one is asked for."""
        return import_module("aquamam.pages.notebook").posterior_html(self)

    def _chunks(self, count: int) -> list[int]:
        """Numbers of rotations to work on at once, equal within one: a small last one would waste a matrix product."""
        at_once = max(1, CHUNK_FLOATS // (self.row_floats * max(self._batch, 1)))
        parts = max(1, -(-count // at_once))
        size, larger = divmod(count, parts)
        return [size + 1] * larger + [size] * (parts - larger)

    def _log_probs(self, q: Rotations) -> Densities:
        """`_log_prob` of any number of rotations."""
        return torch.cat([*map(self._log_prob, q.split(self._chunks(len(q))))])


class Wrapped(RotationDistribution):
    """A distribution made from another one, which it asks for whatever it does not change."""

    def __init__(self, inner: RotationDistribution):
        super().__init__(inner._batch, ceiling=inner.ceiling, row_floats=inner.row_floats)
        self.inner = inner

    def around(self, inner: RotationDistribution) -> "Wrapped":
        """The same about another distribution."""
        new = copy.copy(self)
        Wrapped.__init__(new, inner)
        return new

    @property
    def unwrapped(self) -> RotationDistribution:
        return self.inner.unwrapped

    @property
    def conformal_scores(self) -> ConformalScores | None:
        return self.inner.conformal_scores

    @property
    def typicality(self) -> Float[Tensor, "batch"] | None:
        return self.inner.typicality

    def _mode(self) -> Float[Tensor, "batch 4"]:
        return self.inner._mode()

    def _some(self, images: Images) -> RotationDistribution:
        return self.around(self.inner._some(images))

    def _cell(self, q: Float[Tensor, "*batch 4"]) -> tuple[Int64[Tensor, "*batch code"], Float[Tensor, "*batch"]]:
        return self.inner._cell(q)


class Calibrated(Wrapped):
    r"""A posterior with what its model's held-out images say about it.

    A floor, $p = (1 - \epsilon) p_{inner} + \epsilon / \pi^2$: no rotation is impossible, however sure the network is.
    Conformal scores, by which `region` holds the truth as often as it says. And how typical the encoder's states are.
    """

    def __init__(self, inner: RotationDistribution, calibration: Calibration):
        super().__init__(inner)
        self.calibration = calibration

    @property
    def conformal_scores(self) -> ConformalScores | None:
        return self.calibration.scores

    @property
    def typicality(self) -> Float[Tensor, "batch"] | None:
        typical = self.calibration.typicality
        return None if typical is None else typical.p_value(self.unwrapped.image_state)

    def _log_prob(self, q: Rotations) -> Densities:
        log_p, floor = self.inner._log_prob(q), self.calibration.floor
        if not floor:
            return log_p
        return torch.logaddexp(log_p + math.log1p(-floor), log_p.new_full((), LOG_UNIFORM + math.log(floor)))

    def _sample(self, count: int, generator: Generator) -> Rotations:
        q, floor = self.inner._sample(count, generator), self.calibration.floor
        if not floor:
            return q
        anywhere = random_quat(q.shape[:-1], generator=generator, dtype=q.dtype, device=q.device)
        lost = torch.rand(q.shape[:-1], generator=generator, device=q.device) < floor
        return torch.where(lost[..., None], anywhere, q)

    def _topk(self, k: int) -> TopK:
        q, log_p = self.inner._topk(k)  # what the floor adds to a cell is less than a millionth
        return TopK(q, log_p + math.log1p(-self.calibration.floor))


class Rotated(Wrapped):
    """The distribution of A R for R of the inner one; a rotation A of the camera leaves volumes as they are."""

    def __init__(self, inner: RotationDistribution, by: Float[Tensor, "batch 4"]):
        super().__init__(inner)
        self.by = by

    def _back(self, q: Tensor) -> Tensor:
        return multiply(inverse(self.by.to(q)), q)

    def _there(self, q: Tensor) -> Tensor:
        return multiply(self.by.to(q.device), q.double()).to(q.dtype)

    def _log_prob(self, q: Rotations) -> Densities:
        return self.inner._log_prob(self._back(q))

    def _sample(self, count: int, generator: Generator) -> Rotations:
        return self._there(self.inner._sample(count, generator))

    def _mode(self) -> Float[Tensor, "batch 4"]:
        return self._there(self.inner._mode())

    def _topk(self, k: int) -> TopK:
        q, log_p = self.inner._topk(k)
        return TopK(self._there(q), log_p)

    def _cell(self, q: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner._cell(self._back(q))

    def _some(self, images: Images) -> "Rotated":
        return Rotated(self.inner._some(images), self.by[images])


class EqualViews(Wrapped):
    r"""A posterior in which rotations that are indistinguishable in an image share their probability equally.

    A network learns that the four rotations of a lone five are equally likely, but only roughly. What the object's
    shape and paint say about it is exact: which rotations R' give the picture of R does not depend on the network.
    These classes divide all rotations, and

    $$\bar p(R) = \frac{1}{|C(R)|} \sum_{R' \in C(R)} p(R')$$

    is as well normalised as p, since each $R \mapsto R g$ keeps volumes. Its samples are those of p, each replaced by
    one of its class at random. Predictions stay those of p.
    """

    def __init__(self, inner: RotationDistribution, classes: ViewClasses):
        super().__init__(inner)
        self.classes = classes

    def _log_prob(self, q: Rotations) -> Densities:
        """The mean of the inner density over the class of each rotation."""
        log_p = self.inner._log_prob(q)
        member = self.classes.members(q)
        image, row, element = member[..., 1:].transpose(0, 1).nonzero(as_tuple=True)
        if not len(image):
            return log_p
        # the others of all classes, image by image; images with fewer than others repeat a rotation
        counts = image.bincount(minlength=self._batch)
        place = torch.arange(len(image), device=q.device) - (counts.cumsum(0) - counts)[image]
        others = q[:1].repeat(int(counts.max()), 1, 1)
        others[place, image] = multiply(q[row, image], self.classes.elements.to(q)[element + 1])
        others_log_p = self.inner._log_probs(others)[place, image]
        flat = row * self._batch + image
        highest = log_p.detach().flatten().scatter_reduce(0, flat, others_log_p.detach(), "amax").clamp_min(-1e30)
        total = torch.exp(log_p.flatten() - highest).scatter_add(0, flat, torch.exp(others_log_p - highest[flat]))
        return (highest + total.log()).reshape(log_p.shape) - member.sum(-1).log()

    def _sample(self, count: int, generator: Generator) -> Rotations:
        return self.classes.draw(self.inner._sample(count, generator), generator)

    def _topk(self, k: int) -> TopK:
        """The best of the inner distribution's best cells and of all that are indistinguishable from them."""
        q, log_p = self.inner._topk(k)
        member = self.classes.members(q)
        for image in member[..., 1:].any(-1).any(0).nonzero()[:, 0].tolist():  # few pictures fit several rotations
            row, element = member[:, image].nonzero(as_tuple=True)
            each = multiply(q[row, image], self.classes.elements.to(q)[element])
            code, log_factor = self._cell(each)
            score = self._some(slice(image, image + 1)).log_prob(each[:, None])[:, 0] - log_factor
            order = score.argsort(descending=True)
            codes = [tuple(one) for one in code[order].tolist()]
            kept = order[[i for i, one in enumerate(codes) if one not in codes[:i]]][: len(q)]  # each cell once
            q[: len(kept), image], log_p[: len(kept), image] = each[kept], score[kept].to(log_p.dtype)
        return TopK(q, log_p)
