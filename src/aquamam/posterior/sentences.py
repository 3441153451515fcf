"""AQuaMaM's posterior: a rotation as a sentence of three bins, each given the earlier ones, on top of anything that
tells their logits.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aquamam.geometry.cells import Cells
from aquamam.geometry.charts import ChartPoint
from aquamam.geometry.rotations import as_unit_quat
from aquamam.posterior import windows
from aquamam.posterior.decoding import Choose, Passes, beam, sampler
from aquamam.posterior.distribution import CHUNK_FLOATS, RotationDistribution, TopK, even_chunks


@runtime_checkable
class Conditionals(Protocol):
    """Logits of the next bin for a batch of images: all that AQuaMaM's posterior needs from a network."""

    batch: int
    row_floats: int  # rough size of the activations of one rotation

    def some(self, images: Tensor | slice) -> "Conditionals":
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
        super().__init__(conditionals.batch, ceiling=cells.ceiling)
        self.conditionals = conditionals
        self.cells = cells
        self._first_log_probs: Tensor | None = None

    def first_log_probs(self) -> Float[Tensor, "batch first_tokens"]:
        """Log-probabilities of the first token, computed once."""
        if self._first_log_probs is None or (torch.is_grad_enabled() and not self._first_log_probs.requires_grad):
            self._first_log_probs = self.conditionals.first().float().log_softmax(-1)
        return self._first_log_probs

    def _some(self, images: Tensor | slice) -> "QuaternionSentences":
        return QuaternionSentences(self.conditionals.some(images), self.cells)

    def _rotations_per_chunk(self) -> int:
        row = 4 * self.cells.bins + self.conditionals.row_floats
        return max(1, CHUNK_FLOATS // (row * max(self._batch, 1)))

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        point = self.cells.chart.split(q)
        cell = self.cells.locate(point)
        return self._sentence_log_prob(point, cell) + self.cells.log_factor(point, cell)

    def _sentence_log_prob(self, point: ChartPoint, cell: Int[Tensor, "rotations batch 3"]) -> Tensor:
        token = point.chart * self.cells.bins + cell[..., 0]
        logits = self._rest(point, cell)
        # both steps at once: indexing one step at a time costs a whole tensor of zeros each in the backward pass
        rest = logits.gather(-1, cell[..., 1:, None]).squeeze(-1) - logits.logsumexp(-1)
        return self.first_log_probs().gather(-1, token.T).T + rest.sum(-1)

    def _rest(
        self,
        point: ChartPoint,
        cell: Int[Tensor, "rotations batch 3"],
        window: Float[Tensor, "batch 3"] | None = None,
    ) -> Float[Tensor, "rotations batch steps bins"]:
        """Logits of the second and third token, -inf where illegal, and of a window's three tokens."""
        seen = self.cells.seen(point.u[..., :2], cell[..., :2]).float()
        if window is not None:
            place = windows.centre(windows.locate(window, self.cells.bins), self.cells.bins)
            third = self.cells.centre(cell[..., 2:]).float()
            seen = torch.cat([seen, third, place[:, :2].expand(len(seen), -1, -1)], -1)
        logits, _ = self.conditionals.rest(point.chart, seen)
        logits = logits.float()
        steps = [self.cells.restrict(logits[..., c - 1, :], cell[..., :c]) for c in (1, 2)]
        return torch.cat([torch.stack(steps, -2), logits[..., 2:, :]], -2)

    def smoothed_log_prob(
        self, q: Float[Tensor, "rotations batch 4"], sigma: float = 0.0, window: Float[Tensor, "batch 3"] | None = None
    ) -> Float[Tensor, "rotations batch"]:
        """`log_prob` with each token's label smeared over the legal bins of its axis by a Gaussian of `sigma` bins: a
        training target that tells near misses from far ones. Tends to `log_prob` as sigma -> 0 and is no density for
        sigma > 0.

        window: where the part lies in each crop; then the log density of both.
        """
        point, bins = self.cells.chart.split(as_unit_quat(q)), self.cells.bins
        cell = self.cells.locate(point)
        log_p = [self._of_chart(point.chart), *self._rest(point, cell, window).log_softmax(-1).unbind(-2)]
        places, exact = (
            cell,
            point.u / self.cells.width + bins / 2 - 0.5,
        )  # bin coordinates: the target's mean is unbiased
        factor = self.cells.log_factor(point, cell)
        if window is not None:
            places = torch.cat([places, windows.locate(window, bins).expand(len(q), -1, -1)], -1)
            where = ((windows.normalised(window) + 1) / 2 * bins - 0.5).expand(len(q), -1, -1)
            exact, factor = torch.cat([exact, where.to(exact)], -1), factor - windows.log_volume(bins)
        if sigma > 0:
            tokens = [windows.smeared(p, exact[..., k].float(), sigma) for k, p in enumerate(log_p)]
        else:
            tokens = [p.gather(-1, places[..., k, None]).squeeze(-1) for k, p in enumerate(log_p)]
        return torch.stack(tokens).sum(0) + factor.to(log_p[0].dtype)

    def _of_chart(self, chart: Int[Tensor, "rotations batch"]) -> Float[Tensor, "rotations batch bins"]:
        """Log-probabilities of the first tokens of a chart."""
        first = self.first_log_probs().reshape(self._batch, self.cells.chart.count, self.cells.bins)
        return first[torch.arange(self._batch, device=chart.device), chart]

    def decode(self, choose: Choose, generator: torch.Generator | None = None, *, shared: bool = False) -> Sentences:
        """The one decoding loop: greedy, beam and sampling differ only in how they choose.

        shared: sentences that are equal so far pass through the network once.
        """
        cells = self.cells
        first = self.first_log_probs()
        rows = torch.arange(self._batch, device=first.device)
        _, token = choose(torch.zeros_like(first[None, :, 0]), first[None], None)
        total = first.gather(-1, token.T).T
        chart, cell = token // cells.bins, (token % cells.bins)[..., None]
        past: tuple[Tensor, ...] = ()
        passes = Passes.of(token).if_fewer() if shared else None
        while cell.shape[-1] < 3:
            where, bins = (chart, cell) if passes is None else (passes.pick(chart), passes.pick(cell))
            logits, past = self.conditionals.rest(where, self._shown(bins[..., -1], generator)[..., None], past)
            log_p = cells.restrict(logits[..., 0, :].float(), bins).log_softmax(-1)
            parent, token = choose(total, log_p, passes)
            more = cell.shape[-1] < 2
            if passes is not None:
                total = total + log_p[passes.place, rows, token]
                if more:
                    before, passes = passes.place, Passes.of(passes.place * cells.bins + token).if_fewer()
                    came_from = before if passes is None else passes.pick(before)
                    past = tuple(state[came_from, rows] for state in past)
            elif parent is None:
                total = total + log_p.gather(-1, token[..., None]).squeeze(-1)
            else:
                total = total[parent, rows] + log_p[parent, rows, token]
                chart, cell = chart[parent, rows], cell[parent, rows]
                past = tuple(state[parent, rows] for state in past) if more else ()
            cell = torch.cat([cell, token[..., None]], -1)
        return Sentences(chart, cell, total)

    def _shown(self, bins: Int[Tensor, "rotations batch"], generator: torch.Generator | None) -> Tensor:
        """What the network sees of a chosen bin: its centre, or when the paper's density is sampled a uniform value
        of it (Listing 3).
        """
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
            generator = torch.Generator(device=self.first_log_probs().device)
            generator.manual_seed(int(torch.randint(2**62, ()).item()))
        with torch.no_grad():
            parts = [
                self.decode(sampler(n, generator), generator, shared=self.cells.density == "cells")
                for n in even_chunks(count, self._rotations_per_chunk())
            ]
        return Sentences(*(torch.cat(field) for field in zip(*parts)))

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        drawn = self.sentences(count, generator=generator)
        return self._to_quat(drawn, self.cells.uniform(drawn.cell, generator))

    def _mode(self) -> Float[Tensor, "batch 4"]:
        best = self.decode(beam(1))
        return self._to_quat(best, self.cells.representative(best.cell))[0]

    def _topk(self, k: int) -> TopK:
        best = self.decode(beam(k))
        return TopK(self._to_quat(best, self.cells.representative(best.cell)), best.log_prob)
