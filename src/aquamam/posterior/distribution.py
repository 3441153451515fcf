"""Posteriors: distributions over rotations as `torch.distributions`, with no network inside.

`RotationDistribution` is the interface that every model of the package returns; AQuaMaM's is in `sentences`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from aquamam.posterior.equal_views import Alike, told_alike
from aquamam.errors import InputError
from aquamam.geometry.rotations import as_unit_quat, convert_log_density, geodesic_angle, multiply
from aquamam.geometry.symmetry import SymmetryGroup, told_symmetry

# Largest working set of one chunk of rotations, in floats: about the size of a last-level cache times a few.
CHUNK_FLOATS = 16_000_000


def even_chunks(count: int, at_most: int) -> list[int]:
    """Sizes of as few chunks as will do, equal within one: a small last one would keep a matrix product from its full rate."""
    parts = max(1, -(-count // at_most))
    return [(count + part) // parts for part in range(parts)]


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: Float[Tensor, "*batch"]
    standard_error: Float[Tensor, "*batch"]


class TopK(NamedTuple):
    """The best sentences: quaternions (xyzw) and the log-probabilities of their cells, best first."""

    quaternions: Float[Tensor, "k *batch 4"]
    log_probs: Float[Tensor, "k *batch"]


class RotationDistribution(Distribution):
    """A batch of distributions over rotations: quaternions xyzw of either sign, log densities with respect to volume pi^2.

    A subclass tells `_log_prob`, `_sample` and `_mode` for quaternions laid out as (rotations, batch, 4), and `_some` if its model may know
    rotations that look alike; shapes, signs, validation, measures, chunks, equal shares and estimates are settled here.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.independent(constraints.real, 1)
    has_rsample = False
    calibration: dict[str, Any] | None = None  # held-out scores of the model that made it; see `regions`
    symmetry: SymmetryGroup | None = None  # the object's, where its model knows it and it is more than none
    alike: Alike | None = (
        None  # the rotations that give one picture and share their probability, where its model knows them
    )

    def __init__(self, batch: int, *, ceiling: float = float("inf")):
        self._batch = batch  # images behind the distribution; batch_shape may be an expanded view of them
        self.ceiling = ceiling  # the largest log density that it can express
        super().__init__(torch.Size([batch]), torch.Size([4]), validate_args=False)

    # What a subclass tells.

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        raise NotImplementedError(f"{type(self).__name__} must define _log_prob.")

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        raise NotImplementedError(f"{type(self).__name__} must define _sample.")

    def _mode(self) -> Float[Tensor, "batch 4"]:
        raise NotImplementedError(f"{type(self).__name__} must define _mode.")

    def _some(self, images: Int64[Tensor, "some"] | slice) -> "RotationDistribution":
        """The distributions of some of the images."""
        raise NotImplementedError(f"{type(self).__name__} must define _some.")

    def _rotations_per_chunk(self) -> int:
        """How many rotations an image to work on at once."""
        return max(1, CHUNK_FLOATS // (1024 * max(self._batch, 1)))

    # What everyone uses.

    def log_prob(self, value: Tensor, measure: str = "pi2") -> Tensor:
        """Log density of unit quaternions (xyzw, either sign), shape (*sample, *batch, 4) -> (*sample, *batch).

        With respect to volume pi^2 (uniform = -2.2895) unless `measure` asks for "1" or "8pi2".
        """
        q, sample_shape = self._flatten(value)
        score = self._own_log_prob if self.alike is None else self._even_log_prob
        log_p = self._in_chunks(score, q)
        return convert_log_density(log_p.reshape(sample_shape + self.batch_shape).to(value.dtype), to=measure)

    def within(self, tolerance: float) -> "RotationDistribution":
        """A distribution whose total variation distance from this one is at most `tolerance`, and whose `log_prob` is quicker at many
        rotations of an image, for maps: again an exact density. Where a model has no such thing it is this one itself."""
        if not 0 <= tolerance < 1:
            raise InputError(f"tolerance must be a probability from 0 to less than 1, got {tolerance}; try 1e-6.")
        return self

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw quaternions (xyzw, q_w >= 0), shape (*sample, *batch, 4); a plain number n means (n,)."""
        sample_shape = torch.Size((sample_shape,) if isinstance(sample_shape, int) else sample_shape)
        if any(n < 0 for n in sample_shape):
            raise InputError(f"sample shapes must not be negative, got {tuple(sample_shape)}.")
        copies = self._copies()
        with torch.no_grad():
            q = self._sample(sample_shape.numel() * copies, generator)
            if self.alike is not None:
                q = self.alike.draw(q, generator)
        return q.reshape(self._extended_shape(sample_shape))

    @property
    def mode(self) -> Tensor:
        """The prediction, shape (*batch, 4), xyzw."""
        with torch.no_grad():
            mode = self._mode()
        return mode.expand(*self.batch_shape, 4) if self.batch_shape else mode[0]

    def predict(
        self, strategy: str = "greedy", *, samples: int = 256, generator: torch.Generator | None = None
    ) -> Tensor:
        """One rotation for each image, shape (*batch, 4): the greedy sentence (the paper's), the best of a beam of 16, or the sample
        with the least expected geodesic error under the posterior ("expected")."""
        if strategy == "greedy":
            return self.mode
        if strategy == "beam":
            return self.topk(16).quaternions[0]
        if strategy == "expected":
            return self.least_expected_error(samples, generator=generator)
        raise InputError(f"strategy must be greedy, beam or expected, got {strategy!r}.")

    def least_expected_error(self, samples: int = 256, *, generator: torch.Generator | None = None) -> Tensor:
        """The sample whose mean geodesic angle to the other samples is smallest, shape (*batch, 4)."""
        if samples < 1:
            raise InputError(f"samples must be at least 1, got {samples}; 256 is the default.")
        q = self.sample((samples,), generator=generator)
        q = q.reshape(samples, -1, 4).transpose(0, 1)  # (batch, samples, 4)
        best = [row[geodesic_angle(row[:, None], row[None]).mean(-1).argmin()] for row in q]
        return torch.stack(best).reshape(*self.batch_shape, 4) if best else q.new_zeros((*self.batch_shape, 4))

    def topk(self, k: int) -> TopK:
        """The k best sentences; only models with cells have them."""
        raise InputError(
            f"topk needs a model with discrete cells, and {type(self).__name__} has none; draw samples instead."
        )

    def entropy(self, samples: int = 1024, *, generator: torch.Generator | None = None) -> Estimate:  # type: ignore[override]
        """Differential entropy in nats (volume pi^2) as a Monte Carlo mean of -log p, with its standard error."""
        if samples < 2:
            raise InputError(f"samples must be at least 2 for a standard error, got {samples}.")
        with torch.no_grad():
            surprise = -self.log_prob(self.sample((samples,), generator=generator))
        return Estimate(surprise.mean(0), surprise.std(0) / samples**0.5)

    def region(self, level: float = 0.9, **options: Any) -> Any:
        """The highest-density regions that hold the truth with this probability: `regions.region`, where the options stand."""
        return import_module("aquamam.posterior.regions").region(self, level, **options)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "RotationDistribution":
        """A view with a larger batch shape; nothing is copied."""
        batch_shape = torch.Size(batch_shape)
        torch.empty(self.batch_shape).expand(batch_shape)  # raises what torch raises when shapes do not fit
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._batch_shape = batch_shape
        return new

    def _own_log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        return self._in_chunks(self._log_prob, q)

    def _in_chunks(self, score: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
        """The scores of as many rotations at once as fit."""
        sizes = even_chunks(len(q), self._rotations_per_chunk())
        if len(sizes) == 1:
            return score(q)
        if torch.is_grad_enabled():
            return torch.cat([score(part) for part in q.split(sizes)])
        # written to their place at once: thousands of small tensors between large ones that come and go would scatter the memory
        log_p, start = q.new_empty(0), 0
        for part in q.split(sizes):
            scores = score(part)
            if not start:
                log_p = scores.new_empty(len(q), *scores.shape[1:])
            log_p[start : start + len(part)] = scores
            start += len(part)
        return log_p

    def _even_log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        """The mean of the density over the class of each rotation."""
        assert self.alike is not None
        log_p = self._own_log_prob(q)
        member = self.alike.members(q)
        image, row, turn = member[..., 1:].transpose(0, 1).nonzero(as_tuple=True)
        if not len(image):
            return log_p
        # the others of all classes, image by image; images with fewer than others repeat some
        images, column, counts = image.unique_consecutive(return_inverse=True, return_counts=True)
        place = torch.arange(len(image), device=q.device) - (counts.cumsum(0) - counts)[column]
        others = q[:1, images].repeat(int(counts.max()), 1, 1)
        others[place, column] = multiply(q[row, image], self.alike.turns.to(q)[turn + 1])
        others_log_p = self._some(images)._own_log_prob(others)[place, column]
        flat = row * self._batch + image
        highest = log_p.detach().flatten().scatter_reduce(0, flat, others_log_p.detach(), "amax").clamp_min(-1e30)
        total = torch.exp(log_p.flatten() - highest).scatter_add(0, flat, torch.exp(others_log_p - highest[flat]))
        return (highest + total.log()).reshape(log_p.shape) - member.sum(-1).log()

    def _copies(self) -> int:
        """How often each image occurs in an expanded view."""
        return self.batch_shape.numel() // self._batch if self._batch else 1

    def _flatten(self, value: Tensor) -> tuple[Tensor, torch.Size]:
        if value.shape[-1:] != (4,):
            raise InputError(f"quaternions are xyzw along a last axis of 4, got shape {tuple(value.shape)}.")
        shape, batch_shape = value.shape[:-1], self.batch_shape
        if not _broadcastable(shape, batch_shape):
            raise InputError(
                f"quaternions must have shape (*sample, *batch, 4) with batch {tuple(batch_shape)}, got {tuple(value.shape)}; "
                "for many rotations of each image try q[:, None, :]."
            )
        # not torch.broadcast_shapes, which imports sympy: a fifth of the start-up of a prediction
        sample_shape = shape[: max(0, len(shape) - len(batch_shape))]
        q = as_unit_quat(value).expand(*sample_shape, *batch_shape, 4)
        if self._batch == 0:
            return q.reshape(sample_shape.numel(), 0, 4), sample_shape
        # the images are the last axis of the batch shape, or there is one image: either way this is the layout
        return q.reshape(-1, self._batch, 4), sample_shape


def _broadcastable(a: torch.Size, b: torch.Size) -> bool:
    """Whether quaternions of shape a fit a batch of shape b: a may lack or repeat batch axes, never add to them."""
    return all(x == y or x == 1 for x, y in zip(reversed(a), reversed(b)))


def carry_knowledge(model: Any, inputs: Any, posterior: Any) -> None:
    """A forward hook: posteriors know what the model that made them knows of its held-out scores and of its object."""
    posterior.calibration = getattr(model, "info", {}).get("calibration")
    posterior.symmetry = getattr(model, "symmetry", None)
    posterior.alike = getattr(model, "alike", None)


def learn(model: nn.Module, /, **info: Any) -> None:
    """Add to a model's description, of which its posteriors know the calibration, the symmetries and the lookalikes."""
    model.info = {**getattr(model, "info", {}), **info}  # type: ignore[assignment]
    model.symmetry, model.alike = told_symmetry(model.info), told_alike(model.info)  # type: ignore[assignment,arg-type]
    if carry_knowledge not in model._forward_hooks.values():
        model.register_forward_hook(carry_knowledge)
