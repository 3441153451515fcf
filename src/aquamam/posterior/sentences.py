"""AQuaMaM's posterior: a rotation as a sentence of three bins, each given the earlier ones."""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from aquamam.geometry.cells import Cells, ChartPoint
from aquamam.geometry.rotations import as_unit_quat, inverse_cdf
from aquamam.posterior import windows
from aquamam.posterior.distribution import Densities, Generator, Images, RotationDistribution, Rotations, TopK

Windows = Float[Tensor, "batch 3"]
# (log-probability so far (R, B), log-probabilities of the next token (R, B, K)) -> parent row and token of each new row
# (R', B)
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@runtime_checkable
class Conditionals(Protocol):
    """Logits of the next bin for a batch of images: all that AQuaMaM's posterior needs from a network."""

    batch: int
    row_floats: int  # rough size of the activations of one rotation

    def some(self, images: Images) -> "Conditionals":
        """Those of some of the images."""

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


class QuaternionSentences(RotationDistribution):
    """AQuaMaM's posterior: three tokens, each a bin given the earlier ones."""

    def __init__(self, conditionals: Conditionals, cells: Cells):
        row_floats = 4 * cells.bins + conditionals.row_floats
        super().__init__(conditionals.batch, ceiling=cells.ceiling, row_floats=row_floats)
        self.conditionals = conditionals
        self.cells = cells
        self._first_log_probs: Tensor | None = None

    @property
    def image_state(self) -> Float[Tensor, "batch dim"]:
        """The mean value that the last layer keeps of an image's tokens, and the entropy of the first token."""
        log_p = self.first_log_probs()
        entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
        return torch.cat([self.conditionals.image_state, entropy], -1)  # type: ignore[attr-defined]

    def first_log_probs(self) -> Float[Tensor, "batch first_tokens"]:
        """Log-probabilities of the first token, computed once."""
        if self._first_log_probs is None or (torch.is_grad_enabled() and not self._first_log_probs.requires_grad):
            self._first_log_probs = self.conditionals.first().float().log_softmax(-1)
        return self._first_log_probs

    def _some(self, images: Images) -> "QuaternionSentences":
        return QuaternionSentences(self.conditionals.some(images), self.cells)

    def _cell(self, q: Float[Tensor, "*batch 4"]) -> tuple[Int64[Tensor, "*batch code"], Float[Tensor, "*batch"]]:
        point = self.cells.chart.split(q)
        cell = self.cells.locate(point)
        return torch.cat([point.chart[..., None], cell], -1), self.cells.log_factor(point, cell)

    def _log_prob(self, q: Rotations) -> Densities:
        point = self.cells.chart.split(q)
        cell = self.cells.locate(point)
        token = point.chart * self.cells.bins + cell[..., 0]
        logits = self.later_logits(point, cell)
        # both steps at once: indexing one step at a time costs a whole tensor of zeros each in the backward pass
        rest = logits.gather(-1, cell[..., 1:, None]).squeeze(-1) - logits.logsumexp(-1)
        sentence = self.first_log_probs().gather(-1, token.T).T + rest.sum(-1)
        return sentence + self.cells.log_factor(point, cell)

    def later_logits(
        self, point: ChartPoint, cell: Int[Tensor, "rotations batch 3"], window: Float[Tensor, "..."] | None = None
    ) -> Float[Tensor, "rotations batch steps bins"]:
        """Logits of the second and third token, -inf where illegal, and of the three tokens of a window, if given."""
        seen = self.cells.seen(point.u[..., :2], cell[..., :2]).float()
        if window is not None:
            place = windows.centre(windows.locate(window, self.cells.bins)[..., :2], self.cells.bins)
            seen = torch.cat([seen, self.cells.centre(cell[..., 2:]).float(), place.expand(len(seen), -1, -1)], -1)
        logits = self.conditionals.rest(point.chart, seen)[0].float()
        second = self.cells.restrict(logits[..., 0, :], cell[..., :1])
        third = self.cells.restrict(logits[..., 1, :], cell[..., :2])
        return torch.cat([torch.stack([second, third], -2), logits[..., 2:, :]], -2)

    def smoothed_log_prob(self, q: Rotations, sigma: float = 0.0, window: Windows | None = None) -> Densities:
        """`log_prob` with each token's label smeared over the legal bins of its axis by a Gaussian of `sigma` bins: a
        training target that tells near misses from far ones, and no density.

        window: where the part lies in each crop; then the log density of both.
        """
        cells, bins, point = self.cells, self.cells.bins, self.cells.chart.split(as_unit_quat(q))
        label = cell = cells.locate(point)
        first = self.first_log_probs().reshape(self._batch, cells.chart.count, bins)
        first = first[torch.arange(self._batch, device=q.device), point.chart]  # of the true chart
        log_p = torch.cat([first[..., None, :], self.later_logits(point, cell, window).log_softmax(-1)], -2)
        # bin coordinates of the exact value, so that the target's mean is unbiased
        exact, factor = point.u / cells.width + bins / 2, cells.log_factor(point, cell)
        if window is not None:
            label = torch.cat([cell, windows.locate(window, bins).expand(len(q), -1, -1)], -1)
            exact = torch.cat([exact, windows.position(window, bins).expand(len(q), -1, -1).to(exact)], -1)
            factor = factor - windows.log_volume(bins)
        if sigma > 0:
            off = torch.arange(bins, device=q.device) + 0.5 - exact.float()[..., None]
            legal = log_p.isfinite()
            weights = torch.exp(-0.5 * (off / sigma).square()) * legal
            tokens = (weights * log_p.masked_fill(~legal, 0)).sum(-1) / weights.sum(-1).clamp_min(1e-30)
        else:
            tokens = log_p.gather(-1, label[..., None]).squeeze(-1)
        return (tokens.sum(-1) + factor).to(q.dtype)

    def decode(self, choose: Choose, generator: Generator = None) -> Sentences:
        """The one decoding loop: greedy, beam and sampling differ only in how they choose.

        Sentences that are equal so far pass through the network once, unless the paper's density is sampled, which
        shows the network a value of its own for each.
        """
        cells, first = self.cells, self.first_log_probs()
        images = torch.arange(self._batch, device=first.device)
        noisy = cells.density == "paper" and generator is not None
        _, code = choose(torch.zeros_like(first[None, :, 0]), first[None])
        total, chart, cell = first.gather(-1, code.T).T, code // cells.bins, (code % cells.bins)[..., None]
        past: tuple[Tensor, ...] = ()
        state = torch.zeros_like(code)  # the one in `past` that a row goes on from; its code stands for its prefix
        while cell.shape[-1] < 3:
            if noisy:
                code = torch.arange(len(code), device=code.device)[:, None].expand_as(code)
            row, place = distinct(code)
            shown = cells.centre(cell[row, images][..., -1:])
            if noisy:
                noise = torch.rand(shown.shape, generator=generator, dtype=shown.dtype, device=shown.device)
                shown = shown + (noise - 0.5) * cells.width
            past = tuple(states[state[row, images], images] for states in past)
            logits, past = self.conditionals.rest(chart[row, images], shown.float(), past)
            log_p = cells.restrict(logits[..., 0, :].float(), cell[row, images]).log_softmax(-1)
            parent, token = choose(total, log_p[place, images])
            total, chart, cell, state = (x[parent, images] for x in (total, chart, cell, place))
            total, code = total + log_p[state, images, token], state * cells.bins + token
            cell = torch.cat([cell, token[..., None]], -1)
        return Sentences(chart, cell, total)

    def sentences(self, count: int, *, generator: Generator = None) -> Sentences:
        """Draw token sequences, shape (count, batch)."""
        if generator is None:
            seed = int(torch.randint(2**62, ()))
            generator = torch.Generator(device=self.first_log_probs().device).manual_seed(seed)
        with torch.no_grad():
            parts = [self.decode(sampler(n, generator), generator) for n in self._chunks(count)]
        return Sentences(*map(torch.cat, zip(*parts)))

    def _sample(self, count: int, generator: Generator) -> Rotations:
        drawn = self.sentences(count, generator=generator)
        return self.cells.chart.join(drawn.chart, self.cells.uniform(drawn.cell, generator)).float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        return self.greedy

    @cached_property
    def greedy(self) -> Float[Tensor, "batch 4"]:
        """The greedy sentence's rotation, decoded once: a prediction, its pose and an answer all start from it."""
        return self._topk(1).quaternions[0]

    def _topk(self, k: int) -> TopK:
        best = self.decode(beam(k))
        q = self.cells.chart.join(best.chart, self.cells.representative(best.cell)).float()
        return TopK(q, best.log_prob.nan_to_num(-torch.inf, neginf=-torch.inf))


def beam(width: int) -> Choose:
    """The best `width` sentences so far; with one it is greedy."""

    def choose(total: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
        rows, batch, tokens = log_p.shape
        joint = (total[..., None] + log_p).transpose(0, 1).reshape(batch, rows * tokens)
        # a beam wider than all that is legal goes on from illegal bins, too, after which nothing is: never the best
        joint = joint.masked_fill(joint.isnan(), -torch.inf)
        best = joint.topk(min(width, rows * tokens), dim=-1).indices.T
        return best // tokens, best % tokens

    return choose


def sampler(count: int, generator: torch.Generator) -> Choose:
    """One uniform number a row; at first all samples of an image go on from one row."""

    def choose(total: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
        rows, batch, _ = log_p.shape
        u = torch.rand((count, batch), generator=generator, dtype=torch.float64, device=log_p.device)
        if rows == 1:
            return torch.zeros_like(u, dtype=torch.long), inverse_cdf(log_p[0].exp(), u.T).T
        parent = torch.arange(rows, device=u.device)[:, None].expand(rows, batch)
        return parent, inverse_cdf(log_p.exp(), u[..., None]).squeeze(-1)

    return choose


def distinct(code: Int[Tensor, "rows batch"]) -> tuple[Int[Tensor, "distinct batch"], Int[Tensor, "rows batch"]]:
    """A row of each code that occurs in a column, and the place of every row among them.

    Columns with fewer codes than others repeat some.
    """
    code, order = code.sort(0)
    new = torch.ones_like(code, dtype=torch.bool)
    new[1:] = code[1:] != code[:-1]
    place = new.cumsum(0) - 1
    count = int(place.max()) + 1 if place.numel() else 0
    row = order[:1].repeat(count, 1).scatter_(0, place, order)
    return row, torch.empty_like(order).scatter_(0, order, place)
