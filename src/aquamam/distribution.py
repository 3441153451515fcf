"""Posteriors: distributions over rotations as `torch.distributions`, with no network inside.

`RotationDistribution` is the interface that every model of the package returns; `QuaternionSentences` is AQuaMaM's, on top of anything
that tells the logits of the next bin.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Distribution, constraints

from aquamam.cells import Cells
from aquamam.charts import ChartPoint
from aquamam.errors import InputError
from aquamam.rotations import as_unit_quat, convert_log_density, geodesic_angle

# Largest working set of one chunk of rotations, in floats: about the size of a last-level cache times a few.
CHUNK_FLOATS = 16_000_000


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

    A subclass tells `_log_prob`, `_sample` and `_mode` for quaternions laid out as (rotations, batch, 4); shapes, signs, validation,
    measures, chunks and estimates are settled here.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.independent(constraints.real, 1)
    has_rsample = False
    calibration: dict[str, Any] | None = None  # held-out scores of the model that made it; see `regions`

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

    def _rotations_per_chunk(self) -> int:
        """How many rotations an image to work on at once."""
        return max(1, CHUNK_FLOATS // (1024 * max(self._batch, 1)))

    # What everyone uses.

    def log_prob(self, value: Tensor, measure: str = "pi2") -> Tensor:
        """Log density of unit quaternions (xyzw, either sign), shape (*sample, *batch, 4) -> (*sample, *batch).

        With respect to volume pi^2 (uniform = -2.2895) unless `measure` asks for "1" or "8pi2".
        """
        q, sample_shape = self._flatten(value)
        parts = [self._log_prob(part) for part in q.split(self._rotations_per_chunk())]
        log_p = torch.cat(parts) if parts else q.new_zeros((0, self._batch))
        return convert_log_density(log_p.reshape(sample_shape + self.batch_shape).to(value.dtype), to=measure)

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw quaternions (xyzw, q_w >= 0), shape (*sample, *batch, 4)."""
        sample_shape = torch.Size(sample_shape)
        if any(n < 0 for n in sample_shape):
            raise InputError(f"sample shapes must not be negative, got {tuple(sample_shape)}.")
        copies = self._copies()
        with torch.no_grad():
            q = self._sample(sample_shape.numel() * copies, generator)
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
        return import_module("aquamam.regions").region(self, level, **options)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "RotationDistribution":
        """A view with a larger batch shape; nothing is copied."""
        batch_shape = torch.Size(batch_shape)
        torch.empty(self.batch_shape).expand(batch_shape)  # raises what torch raises when shapes do not fit
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new._batch_shape = batch_shape
        return new

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


def carry_calibration(model: Any, inputs: Any, posterior: Any) -> None:
    """A forward hook: posteriors know the held-out scores of the model that made them."""
    posterior.calibration = getattr(model, "info", {}).get("calibration")


@runtime_checkable
class Conditionals(Protocol):
    """Logits of the next bin for a batch of images: all that AQuaMaM's posterior needs from a network."""

    batch: int
    row_floats: int  # rough size of the activations of one rotation

    def first(self) -> Float[Tensor, "batch first_tokens"]:
        """Logits of the first token: chart and bin together, chart * N + bin."""

    def rest(
        self,
        chart: Int[Tensor, "rotations batch"],
        seen: Float[Tensor, "rotations batch steps"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "rotations batch steps bins"], tuple[Tensor, ...]]:
        """Logits of the bins that follow each component in `seen`, and what to pass as `past` to go on from there.

        The tensors of `past` have leading axes (rotations, batch).
        """


class Sentences(NamedTuple):
    """Decoded token sequences."""

    chart: Int[Tensor, "rotations batch"]
    cell: Int[Tensor, "rotations batch 3"]
    log_prob: Float[Tensor, "rotations batch"]


# (log-probability so far (R, B), log-probabilities of the next token (R, B, K)) -> parent row and token of each new row (R', B);
# no parents where every row is its own
Choose = Callable[[Tensor, Tensor], tuple[Tensor | None, Tensor]]


class FirstTokens(NamedTuple):
    """One image's pass through the network for every first token there is."""

    log_prob: Float[Tensor, "first_tokens bins"]  # of the second token
    past: tuple[Tensor, ...]


class QuaternionSentences(RotationDistribution):
    """AQuaMaM's posterior: three tokens, each a bin given the earlier ones."""

    def __init__(self, conditionals: Conditionals, cells: Cells):
        super().__init__(conditionals.batch, ceiling=cells.ceiling)
        self.conditionals = conditionals
        self.cells = cells
        self._first_log_probs: Tensor | None = None
        self._first_tokens: FirstTokens | None = None

    def _first(self) -> Float[Tensor, "batch first_tokens"]:
        if self._first_log_probs is None or (torch.is_grad_enabled() and not self._first_log_probs.requires_grad):
            self._first_log_probs = self.conditionals.first().float().log_softmax(-1)
        return self._first_log_probs

    def _rotations_per_chunk(self) -> int:
        row = 4 * self.cells.bins + self.conditionals.row_floats
        return max(1, CHUNK_FLOATS // (row * max(self._batch, 1)))

    def log_prob(self, value: Tensor, measure: str = "pi2") -> Tensor:
        # Where the network sees bins only, a map's rotations outnumber the first tokens: these then go through the network once, not
        # once a rotation, which halves the work.
        cells, tokens = self.cells, self.cells.first_tokens
        repeats = cells.density == "cells" and self._batch == 1 and value.numel() // 4 >= 2 * tokens
        fits = tokens * (cells.bins + self.conditionals.row_floats // 4) <= 4 * CHUNK_FLOATS
        if repeats and fits and self._first_tokens is None and not torch.is_grad_enabled():
            self._first_tokens = self._all_first_tokens()
        return super().log_prob(value, measure)

    def _all_first_tokens(self) -> FirstTokens:
        log_p, past = [], []
        for token in torch.arange(self.cells.first_tokens, device=self._first().device)[:, None].split(
            self._rotations_per_chunk()
        ):
            first = (token % self.cells.bins)[..., None]
            logits, states = self.conditionals.rest(token // self.cells.bins, self.cells.centre(first).float())
            log_p.append(
                logits[:, 0, 0].float().masked_fill(self.cells.illegal(first[:, 0]), -torch.inf).log_softmax(-1)
            )
            past.append(states)
        return FirstTokens(torch.cat(log_p), tuple(torch.cat(state) for state in zip(*past)))

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        point = self.cells.chart.split(q)
        cell = self.cells.locate(point)
        return self._sentence_log_prob(point, cell) + self.cells.log_factor(point, cell)

    def _sentence_log_prob(self, point: ChartPoint, cell: Int[Tensor, "rotations batch 3"]) -> Tensor:
        token = point.chart * self.cells.bins + cell[..., 0]
        log_p = self._first().gather(-1, token.T).T
        if self._first_tokens is not None and not torch.is_grad_enabled():
            second = self._first_tokens.log_prob[token, cell[..., 1]]
            past = tuple(state[token[:, 0]] for state in self._first_tokens.past)
            logits, _ = self.conditionals.rest(point.chart, self.cells.centre(cell[..., 1:2]).float(), past)
            logits = logits[..., 0, :].float().masked_fill(self.cells.illegal(cell[..., :2]), -torch.inf)
            return log_p + second + logits.gather(-1, cell[..., 2:]).squeeze(-1) - logits.logsumexp(-1)
        logits = self._rest(point, cell)
        # both steps at once: indexing one step at a time costs a whole tensor of zeros each in the backward pass
        rest = logits.gather(-1, cell[..., 1:, None]).squeeze(-1) - logits.logsumexp(-1)
        return log_p + rest.sum(-1)

    def _rest(
        self, point: ChartPoint, cell: Int[Tensor, "rotations batch 3"]
    ) -> Float[Tensor, "rotations batch 2 bins"]:
        """Logits of the second and third token, -inf where illegal."""
        seen = self.cells.seen(point.u[..., :2], cell[..., :2]).float()
        logits, _ = self.conditionals.rest(point.chart, seen)
        illegal = torch.stack([self.cells.illegal(cell[..., :1]), self.cells.illegal(cell[..., :2])], -2)
        return logits.float().masked_fill(illegal, -torch.inf)

    def smoothed_log_prob(self, value: Float[Tensor, "*shape 4"], sigma: float) -> Float[Tensor, "*shape"]:
        """`log_prob` with each token's label smeared over the legal bins of its axis by a Gaussian of `sigma` bins: a training target
        that tells near misses from far ones. Tends to `log_prob` as sigma -> 0 and is no density for sigma > 0."""
        if sigma <= 0:
            return self.log_prob(value)
        q, sample_shape = self._flatten(value)
        point = self.cells.chart.split(q)
        cell = self.cells.locate(point)
        bins = torch.arange(self.cells.bins, device=q.device, dtype=torch.float32)
        # bin coordinates of the exact value, so that the target's mean is unbiased
        where = (point.u / self.cells.width + self.cells.bins / 2 - 0.5).float()

        def target(component: int) -> Tensor:
            return torch.exp(-0.5 * ((bins - where[..., component, None]) / sigma).square())

        first = self._first().reshape(self._batch, self.cells.chart.count, self.cells.bins)
        first = first[
            torch.arange(self._batch, device=q.device), point.chart
        ]  # the row of the true chart, (rotations, batch, bins)
        weights = target(0)
        log_p = (weights * first).sum(-1) / weights.sum(-1)
        logits = self._rest(point, cell)
        for step in (0, 1):
            log_q = logits[..., step, :].log_softmax(-1)
            weights = target(step + 1) * log_q.isfinite()
            log_p = log_p + (weights * log_q.masked_fill(~log_q.isfinite(), 0)).sum(-1) / weights.sum(-1).clamp_min(
                1e-30
            )
        log_p = log_p + self.cells.log_factor(point, cell)
        return log_p.reshape(sample_shape + self.batch_shape).to(value.dtype)

    def decode(self, choose: Choose, generator: torch.Generator | None = None) -> Sentences:
        """The one decoding loop: greedy, beam and sampling differ only in how they choose."""
        cells = self.cells
        first = self._first()
        rows = torch.arange(self._batch, device=first.device)
        _, token = choose(torch.zeros_like(first[None, :, 0]), first[None])
        total = first.gather(-1, token.T).T
        chart, cell = token // cells.bins, (token % cells.bins)[..., None]
        past: tuple[Tensor, ...] = ()
        while cell.shape[-1] < 3:
            logits, past = self.conditionals.rest(chart, self._shown(cell[..., -1], generator)[..., None], past)
            log_p = logits[..., 0, :].float().masked_fill(cells.illegal(cell), -torch.inf).log_softmax(-1)
            parent, token = choose(total, log_p)
            if parent is None:
                total = total + log_p.gather(-1, token[..., None]).squeeze(-1)
            else:
                total = total[parent, rows] + log_p[parent, rows, token]
                chart, cell = chart[parent, rows], cell[parent, rows]
                past = tuple(state[parent, rows] for state in past) if cell.shape[-1] < 2 else ()
            cell = torch.cat([cell, token[..., None]], -1)
        return Sentences(chart, cell, total)

    def _shown(self, bins: Int[Tensor, "rotations batch"], generator: torch.Generator | None) -> Tensor:
        """What the network sees of a chosen bin: its centre, or when the paper's density is sampled a uniform value of it (Listing 3)."""
        value = self.cells.centre(bins)
        if self.cells.density == "paper" and generator is not None:
            noise = torch.rand(bins.shape, generator=generator, dtype=value.dtype, device=value.device)
            value = value + (noise - 0.5) * self.cells.width
        return value.float()

    def _to_quat(self, sentences: Sentences, u: Tensor) -> Tensor:
        return self.cells.chart.join(sentences.chart, u).float()

    def sentences(self, count: int, *, generator: torch.Generator | None = None) -> Sentences:
        """Draw token sequences, shape (count, batch)."""
        if generator is None:
            generator = torch.Generator(device=self._first().device)
            generator.manual_seed(int(torch.randint(2**62, ()).item()))
        with torch.no_grad():
            parts = [
                self.decode(_sampler(n, generator), generator) for n in _chunks(count, self._rotations_per_chunk())
            ]
        return Sentences(*(torch.cat(field) for field in zip(*parts)))

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        drawn = self.sentences(count, generator=generator)
        return self._to_quat(drawn, self.cells.uniform(drawn.cell, generator))

    def _mode(self) -> Float[Tensor, "batch 4"]:
        best = self.decode(_beam(1))
        return self._to_quat(best, self.cells.representative(best.cell))[0]

    def topk(self, k: int) -> TopK:
        """The k most probable sentences that a beam of width k finds, with the log-probabilities of their cells."""
        if k < 1:
            raise InputError(f"k must be a positive whole number, got {k}.")
        with torch.no_grad():
            best = self.decode(_beam(k))
        q = self._to_quat(best, self.cells.representative(best.cell))
        found = len(q)
        shape = (found, *([1] * (len(self.batch_shape) - 1)), self._batch)
        return TopK(
            q.reshape(*shape, 4).expand(found, *self.batch_shape, 4) if self.batch_shape else q[:, 0],
            best.log_prob.reshape(shape).expand(found, *self.batch_shape) if self.batch_shape else best.log_prob[:, 0],
        )


def _chunks(count: int, size: int) -> Iterator[int]:
    for start in range(0, max(count, 1), size):
        yield min(size, count - start)


def _beam(width: int) -> Choose:
    def choose(total: Tensor, log_p: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, batch, tokens = log_p.shape
        if width == rows == 1:
            return None, log_p.argmax(-1)
        joint = (total[..., None] + log_p).transpose(0, 1).reshape(batch, rows * tokens)
        best = joint.topk(min(width, rows * tokens), dim=-1).indices.T
        return best // tokens, best % tokens

    return choose


def _sampler(count: int, generator: torch.Generator) -> Choose:
    """Inverse CDF: one uniform number a row, none for bins of probability zero."""

    def choose(total: Tensor, log_p: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, batch, _ = log_p.shape
        u = torch.rand((count, batch), generator=generator, dtype=torch.float64, device=log_p.device)
        if rows == 1:  # the first token: all samples of an image share one CDF
            cdf = log_p[0].double().exp().cumsum(-1)
            target = _below(u.T * cdf[:, -1:], cdf[:, -1:]).contiguous()
            return torch.zeros_like(u, dtype=torch.long), torch.searchsorted(cdf, target, right=True).T
        return None, _inverse_cdf(log_p.exp(), u)

    return choose


def _inverse_cdf(
    p: Float[Tensor, "rotations batch tokens"], u: Float[Tensor, "rotations batch"], width: int = 64
) -> Int[Tensor, "rotations batch"]:
    """The token at which the cumulative probability passes u: first its block of 64, then its place in the block.

    One running sum in double over 50,257 tokens would be most of the time that a sample takes.
    """
    tokens = p.shape[-1]
    whole = tokens - tokens % width
    blocks = p[..., :whole].unflatten(-1, (-1, width)).sum(-1)
    cdf = torch.cat([blocks, p[..., whole:].sum(-1, keepdim=True)], -1).double().cumsum(-1)
    target = _below(u[..., None] * cdf[..., -1:], cdf[..., -1:])
    block = torch.searchsorted(cdf, target, right=True)
    before = F.pad(cdf, (1, 0)).gather(-1, block)
    share = (target - before) / (cdf.gather(-1, block) - before)  # uniform again, now inside the block
    places = block * width + torch.arange(width, device=p.device)
    inside = torch.where(places < tokens, p.gather(-1, places.clamp_max(tokens - 1)), 0.0).double().cumsum(-1)
    place = torch.searchsorted(inside, _below(share * inside[..., -1:], inside[..., -1:]), right=True)
    return (block * width + place).squeeze(-1)


def _below(x: Tensor, limit: Tensor) -> Tensor:
    """x, but less than the limit even after rounding: at the limit itself the search would leave the table."""
    return torch.minimum(x, torch.nextafter(limit, torch.zeros_like(limit)))
