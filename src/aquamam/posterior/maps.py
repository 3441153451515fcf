"""Densities at very many rotations of one image: first tokens pass once, unlikely pairs of tokens are left out."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.cells import Cells
from aquamam.posterior.distribution import CHUNK_FLOATS, Densities, Images, RotationDistribution, Rotations, Wrapped
from aquamam.posterior.sentences import Conditionals, QuaternionSentences

FAINTEST = -80.0  # nats; a million pairs of tokens less likely than this have 1e-29 together
STEPS = 8  # a nat


def within(posterior: RotationDistribution, tolerance: float = 0.0) -> RotationDistribution:
    """A distribution whose total variation distance from this one is at most `tolerance`, and whose `log_prob` is
    quicker at many rotations of an image: again an exact density. One that is not made of bins is returned as it is."""
    require(0 <= tolerance < 1, f"tolerance must be a probability from 0 to less than 1, got {tolerance}; try 1e-6.")
    if isinstance(posterior, Wrapped):
        return posterior.around(within(posterior.inner, tolerance))
    if not isinstance(posterior, QuaternionSentences) or posterior.cells.density != "cells":
        return posterior
    cells, row = posterior.cells, posterior.conditionals.row_floats // 4
    fits = cells.first_tokens * (cells.bins + row) <= 4 * CHUNK_FLOATS
    return SentenceMap(posterior.conditionals, cells, tolerance) if fits else posterior


class FirstTokens(NamedTuple):
    """One image's pass through the network for every first token there is."""

    one: QuaternionSentences  # the image's posterior
    log_prob: Float[Tensor, "first_tokens bins"]  # of the second token
    past: tuple[Tensor, ...]
    threshold: float  # log-probability of a pair of tokens below which the third is taken as even


class SentenceMap(QuaternionSentences):
    """Where the first two tokens are so unlikely that all such pairs have at most `tolerance` together, the third is
    taken as even over its legal bins. That is a density again, and of a map's rotations only the likely ones go through
    the network. Samples and predictions stay those of the whole distribution."""

    def __init__(self, conditionals: Conditionals, cells: Cells, tolerance: float):
        super().__init__(conditionals, cells)
        self.tolerance, self.row_floats = tolerance, 256  # few rotations meet the network
        self._of_images: dict[int, FirstTokens] = {}

    def _some(self, images: Images) -> "SentenceMap":
        return SentenceMap(self.conditionals.some(images), self.cells, self.tolerance)

    def _log_prob(self, q: Rotations) -> Densities:
        if torch.is_grad_enabled():
            return super()._log_prob(q)
        return torch.cat([self._of_image(i, q[:, i : i + 1]) for i in range(self._batch)], 1)

    def _of_image(self, i: int, q: Float[Tensor, "rotations 1 4"]) -> Float[Tensor, "rotations 1"]:
        if i not in self._of_images:
            self._of_images[i] = self._first_tokens(i)
        (one, second, states, threshold), cells = self._of_images[i], self.cells
        point = cells.chart.split(q)
        cell = cells.locate(point)
        token = point.chart * cells.bins + cell[..., 0]
        log_p = one.first_log_probs()[0][token] + second[token, cell[..., 1]]
        third = -(cells.bins - 2 * cells.first_legal(cell[..., :2])).float().log()
        likely = (log_p >= threshold)[:, 0].nonzero()[:, 0]
        for some in likely.split(one._chunks(len(likely))):
            past = tuple(state[token[some, 0]] for state in states)
            logits, _ = one.conditionals.rest(point.chart[some], cells.centre(cell[some, :, 1:2]).float(), past)
            logits = cells.restrict(logits[..., 0, :].float(), cell[some, :, :2])
            third[some] = logits.gather(-1, cell[some, :, 2:]).squeeze(-1) - logits.logsumexp(-1)
        return log_p + third + cells.log_factor(point, cell)

    def _first_tokens(self, i: int) -> FirstTokens:
        one, cells, log_p, past = super()._some(slice(i, i + 1)), self.cells, [], []
        first = one.first_log_probs()[0]
        tokens = torch.arange(cells.first_tokens, device=first.device)[:, None]
        for token in tokens.split(one._chunks(len(tokens))):
            bins = (token % cells.bins)[..., None]
            logits, states = one.conditionals.rest(token // cells.bins, cells.centre(bins).float())
            log_p.append(cells.restrict(logits[:, 0, 0].float(), bins[:, 0]).log_softmax(-1))
            past.append(states)
        second = torch.cat(log_p)
        pairs = (first[:, None] + second).clamp_(FAINTEST, 0).flatten()
        mass = torch.bincount((pairs * -STEPS).int(), pairs.exp().double())  # probability by steps down from 1
        kept = int((mass.flip(0).cumsum(0).flip(0) > self.tolerance).sum())
        threshold = max(-kept / STEPS, FAINTEST) if self.tolerance else -torch.inf
        return FirstTokens(one, second, tuple(torch.cat(state) for state in zip(*past)), threshold)
