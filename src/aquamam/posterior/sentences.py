"""AQuaMaM's posterior: a rotation as a sentence of three bins, each given the earlier ones, on top of anything that tells their logits."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aquamam.posterior.equal_views import Alike
from aquamam.geometry.cells import Cells
from aquamam.geometry.charts import ChartPoint
from aquamam.posterior.decoding import Choose, Passes, beam, sampler
from aquamam.posterior.distribution import CHUNK_FLOATS, RotationDistribution, TopK, even_chunks
from aquamam.errors import InputError
from aquamam.geometry.rotations import canonical, multiply

WORTH = 2  # rows a pass from which on a likelihood shares passes, which else takes both steps at once
FAINTEST = -80.0  # nats; a million pairs of tokens less likely than this have 1e-29 together
STEPS = 8  # a nat


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


class FirstTokens(NamedTuple):
    """One image's pass through the network for every first token there is."""

    log_prob: Float[Tensor, "first_tokens bins"]  # of the second token
    past: tuple[Tensor, ...]

    def floor(self, first: Float[Tensor, "first_tokens"], tolerance: float) -> float:
        """A log-probability such that the pairs of first and second token below it have at most `tolerance` together."""
        log_p = (first[:, None] + self.log_prob).clamp_(FAINTEST, 0).flatten()
        steps = torch.bincount((log_p * -STEPS).int(), log_p.exp().double())  # probability by steps down from 1
        kept = int((steps.flip(0).cumsum(0).flip(0) > tolerance).sum())
        return max(-kept / STEPS, FAINTEST)


class QuaternionSentences(RotationDistribution):
    """AQuaMaM's posterior: three tokens, each a bin given the earlier ones."""

    def __init__(self, conditionals: Conditionals, cells: Cells):
        super().__init__(conditionals.batch, ceiling=cells.ceiling)
        self.conditionals = conditionals
        self.cells = cells
        self._first_log_probs: Tensor | None = None
        self._first_tokens: FirstTokens | None = None
        self._tolerance = 0.0
        self._floor: float | None = None  # of the pairs whose third token is asked for

    def within(self, tolerance: float) -> "QuaternionSentences":
        """Where the first two tokens are so unlikely that all such pairs have at most `tolerance` together, the third is taken as even
        over its legal bins. That is a density again, and of a map's rotations only the likely ones go through the network. Samples and
        predictions stay those of the whole distribution; so does `log_prob` of fewer rotations than there are first tokens, or where
        the network sees more than bins."""
        new = super().within(tolerance).expand(self.batch_shape)
        new._tolerance, new._floor = tolerance, None  # type: ignore[attr-defined]
        return new  # type: ignore[return-value]

    def _first(self) -> Float[Tensor, "batch first_tokens"]:
        if self._first_log_probs is None or (torch.is_grad_enabled() and not self._first_log_probs.requires_grad):
            self._first_log_probs = self.conditionals.first().float().log_softmax(-1)
        return self._first_log_probs

    def _some(self, images: Tensor | slice) -> "QuaternionSentences":
        if self._batch == 1 and (images == slice(0, 1) if isinstance(images, slice) else images.tolist() == [0]):
            return self.expand(self.batch_shape)  # type: ignore[return-value]  # with what it knows already
        some = QuaternionSentences(self.conditionals.some(images), self.cells)
        some._tolerance = self._tolerance
        return some

    def _rotations_per_chunk(self) -> int:
        if self._floor is not None:  # few of them meet the network
            return max(1, CHUNK_FLOATS // 256)
        row = 4 * self.cells.bins + self.conditionals.row_floats
        return max(1, CHUNK_FLOATS // (row * max(self._batch, 1)))

    def log_prob(self, value: Tensor, measure: str = "pi2") -> Tensor:
        # Where the network sees bins only, a map's rotations outnumber the first tokens: these then go through the network once, not
        # once a rotation, which halves the work.
        cells, tokens = self.cells, self.cells.first_tokens
        repeats = self._same_for_same_bins and value.numel() // 4 >= 2 * tokens * max(self._batch, 1)
        fits = tokens * (cells.bins + self.conditionals.row_floats // 4) <= 4 * CHUNK_FLOATS
        if not (repeats and fits) or torch.is_grad_enabled():
            whole = self.within(0.0) if self._floor is not None else self  # whether a map was asked for before or not
            return super(QuaternionSentences, whole).log_prob(value, measure)
        if self._batch > 1:
            return self._one_by_one(value, measure)
        if self._first_tokens is None:
            self._first_tokens = self._all_first_tokens()
        if self._tolerance and self._floor is None:
            self._floor = self._first_tokens.floor(self._first()[0], self._tolerance)
        return super().log_prob(value, measure)

    def _one_by_one(self, value: Tensor, measure: str) -> Tensor:
        """`log_prob`, image after image."""
        q, sample_shape = self._flatten(value)
        columns = []
        for i in range(self._batch):
            one = self._some(slice(i, i + 1))
            one.alike = self.alike
            columns.append(one.log_prob(q[:, i : i + 1], measure))
        return torch.cat(columns, 1).reshape(sample_shape + self.batch_shape).to(value.dtype)

    def _all_first_tokens(self) -> FirstTokens:
        log_p, past = [], []
        tokens = torch.arange(self.cells.first_tokens, device=self._first().device)[:, None]
        for token in tokens.split(even_chunks(len(tokens), self._rotations_per_chunk())):
            first = (token % self.cells.bins)[..., None]
            logits, states = self.conditionals.rest(token // self.cells.bins, self.cells.centre(first).float())
            log_p.append(self.cells.restrict(logits[:, 0, 0].float(), first[:, 0]).log_softmax(-1))
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
            log_p = log_p + self._first_tokens.log_prob[token, cell[..., 1]]
            if self._floor is None:
                return log_p + self._third_log_prob(token, cell)
            return log_p + self._likely_third_log_prob(token, cell, log_p >= self._floor)
        if self._same_for_same_bins and not torch.is_grad_enabled():
            pairs = Passes.of(token * self.cells.bins + cell[..., 1])
            if WORTH * len(pairs.row) <= len(token):
                return log_p + self._shared_log_prob(point.chart, cell, Passes.of(token), pairs)
        logits = self._rest(point, cell)
        # both steps at once: indexing one step at a time costs a whole tensor of zeros each in the backward pass
        rest = logits.gather(-1, cell[..., 1:, None]).squeeze(-1) - logits.logsumexp(-1)
        return log_p + rest.sum(-1)

    def _third_log_prob(self, token: Int[Tensor, "rotations 1"], cell: Int[Tensor, "rotations 1 3"]) -> Tensor:
        """Log-probability of the third token, what is known of the first tokens at hand."""
        assert self._first_tokens is not None
        past = tuple(state[token[:, 0]] for state in self._first_tokens.past)
        seen = self.cells.centre(cell[..., 1:2]).float()
        logits, _ = self.conditionals.rest(token // self.cells.bins, seen, past)
        logits = self.cells.restrict(logits[..., 0, :].float(), cell[..., :2])
        return logits.gather(-1, cell[..., 2:]).squeeze(-1) - logits.logsumexp(-1)

    def _likely_third_log_prob(self, token: Tensor, cell: Tensor, likely: Bool[Tensor, "rotations 1"]) -> Tensor:
        """The same where the first two tokens are likely; even over the legal bins elsewhere."""
        log_p = -(self.cells.bins - 2 * self.cells.first_legal(cell[..., :2])).float().log()
        row = likely[:, 0].nonzero()[:, 0]
        at_once = CHUNK_FLOATS // (4 * self.cells.bins + self.conditionals.row_floats)
        for some in row.split(even_chunks(len(row), at_once)):
            log_p[some] = self._third_log_prob(token[some], cell[some])
        return log_p

    def _shared_log_prob(
        self, chart: Tensor, cell: Int[Tensor, "rotations batch 3"], firsts: Passes, pairs: Passes
    ) -> Tensor:
        """Log-probability of the second and third tokens where many rotations share the earlier ones."""
        past: tuple[Tensor, ...] = ()
        total = torch.zeros_like(chart, dtype=torch.float32)
        for step, passes in enumerate((firsts, pairs)):
            if past:
                past = tuple(passes.pick(firsts.spread(state)) for state in past)
            bins = passes.pick(cell[..., : step + 1])
            logits, past = self.conditionals.rest(passes.pick(chart), self.cells.centre(bins[..., -1:]).float(), past)
            log_p = self.cells.restrict(logits[..., 0, :].float(), bins).log_softmax(-1)
            rows = torch.arange(chart.shape[1], device=chart.device)
            total = total + log_p[passes.place, rows, cell[..., step + 1]]
        return total

    @property
    def _same_for_same_bins(self) -> bool:
        """Whether the network sees bins only, so that rotations with equal bins are equal to it."""
        return self.cells.density == "cells"

    def _rest(
        self, point: ChartPoint, cell: Int[Tensor, "rotations batch 3"]
    ) -> Float[Tensor, "rotations batch 2 bins"]:
        """Logits of the second and third token, -inf where illegal."""
        seen = self.cells.seen(point.u[..., :2], cell[..., :2]).float()
        logits, _ = self.conditionals.rest(point.chart, seen)
        steps = [self.cells.restrict(logits[..., c - 1, :].float(), cell[..., :c]) for c in (1, 2)]
        return torch.stack(steps, -2)

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

    def decode(self, choose: Choose, generator: torch.Generator | None = None, *, shared: bool = False) -> Sentences:
        """The one decoding loop: greedy, beam and sampling differ only in how they choose.

        shared: sentences that are equal so far pass through the network once.
        """
        cells = self.cells
        first = self._first()
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
                self.decode(sampler(n, generator), generator, shared=self._same_for_same_bins)
                for n in even_chunks(count, self._rotations_per_chunk())
            ]
        return Sentences(*(torch.cat(field) for field in zip(*parts)))

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        drawn = self.sentences(count, generator=generator)
        return self._to_quat(drawn, self.cells.uniform(drawn.cell, generator))

    def _mode(self) -> Float[Tensor, "batch 4"]:
        best = self.decode(beam(1))
        return self._to_quat(best, self.cells.representative(best.cell))[0]

    def topk(self, k: int) -> TopK:
        """The k most probable sentences that a beam of width k finds, with the log-probabilities of their cells."""
        if k < 1:
            raise InputError(f"k must be a positive whole number, got {k}.")
        with torch.no_grad():
            best = self.decode(beam(k))
            q = self._to_quat(best, self.cells.representative(best.cell))
            log_p = best.log_prob
            if self.alike is not None:
                q, log_p = self._even_topk(q, log_p, self.alike)
        found = len(q)
        shape = (found, *([1] * (len(self.batch_shape) - 1)), self._batch)
        return TopK(
            q.reshape(*shape, 4).expand(found, *self.batch_shape, 4) if self.batch_shape else q[:, 0],
            log_p.reshape(shape).expand(found, *self.batch_shape) if self.batch_shape else log_p[:, 0],
        )

    def _even_topk(self, q: Tensor, log_p: Tensor, alike: Alike) -> tuple[Tensor, Tensor]:
        """The best of these rotations and of all that give the same pictures as they, by the density that gives them equal shares."""
        q, log_p, member = q.clone(), log_p.clone(), alike.members(q)
        for image in member[..., 1:].any(-1).any(0).nonzero()[:, 0].tolist():  # few pictures fit several rotations
            row, turn = member[:, image].nonzero(as_tuple=True)
            each = canonical(multiply(q[row, image], alike.turns.to(q)[turn]))
            point = self.cells.chart.split(each)
            cell = self.cells.locate(point)
            own = self._some(slice(image, image + 1))
            own.alike = alike
            score = own.log_prob(each[:, None])[:, 0] - self.cells.log_factor(point, cell).to(log_p)
            order = score.argsort(descending=True)
            codes = torch.cat([point.chart[:, None], cell], -1)[order].tolist()
            first = {tuple(code): place for place, code in reversed(list(enumerate(codes)))}  # one of each cell
            kept = order[sorted(first.values())[: len(q)]]
            q[: len(kept), image], log_p[: len(kept), image] = each[kept], score[kept]
        return q, log_p
