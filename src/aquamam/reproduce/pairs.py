r"""Data of finitely many (category, rotation) pairs, whose expected loss is a sum instead of an average over random batches.

The paper's toy data has 63 pairs and six categories. A step that encodes each category once, and reads the head only where a pair needs
it, gives the exact expected loss for the price of 63 pairs; a random batch is the same sum with the drawn multiplicities as weights.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aquamam.network import products
from aquamam.geometry.cells import Cells
from aquamam.errors import InputError
from aquamam.network.model import AQuaMaM
from aquamam.geometry.rotations import as_unit_quat


@dataclass(frozen=True, eq=False)
class Pairs:
    """(category, rotation) pairs and their probabilities."""

    category: Int[Tensor, "pairs"]
    q: Float[Tensor, "pairs 4"]  # xyzw, float64
    weight: Float[Tensor, "pairs"]  # float64, sums to one

    @classmethod
    def uniform(cls, rotations: list[Tensor]) -> "Pairs":
        """Each category equally likely, and in it each of its rotations: the paper's hierarchical model."""
        counts = torch.tensor([len(q) for q in rotations])
        category = torch.arange(len(rotations)).repeat_interleave(counts)
        weight = 1.0 / (len(rotations) * counts.double())
        return cls(category, as_unit_quat(torch.cat(rotations)), weight[category])

    @property
    def categories(self) -> int:
        return int(self.category.max()) + 1

    def of(self, category: int) -> Float[Tensor, "rotations 4"]:
        """The rotations of one category."""
        return self.q[self.category == category]

    def counts(self) -> Int[Tensor, "pairs"]:
        """How many rotations the category of each pair has."""
        return self.category.bincount()[self.category]

    def side_by_side(self) -> tuple[Float[Tensor, "rows categories 4"], Int[Tensor, "pairs"]]:
        """Rotations with the categories along the second axis, as a posterior wants its batch, and the row of each pair.

        Where a category has fewer rotations than another, the identity fills its column.
        """
        row = (self.category[:, None] == self.category).tril(-1).sum(-1)
        q = torch.zeros(int(row.max()) + 1, self.categories, 4, dtype=self.q.dtype)
        q[..., 3] = 1
        q[row, self.category] = self.q
        return q, row


class Sentences:
    """The token sequences of pairs under a model's cells, and their log-probabilities."""

    def __init__(self, pairs: Pairs, cells: Cells):
        if cells.by_volume or cells.spill:
            raise InputError("pairs are read by networks that know legal bins alone; set by_volume=false and spill=0.")
        self.pairs, self.cells = pairs, cells
        self.point = cells.chart.split(pairs.q)
        self.cell = cells.locate(self.point)
        self.token = self.point.chart * cells.bins + self.cell[:, 0]
        self.seen = cells.seen(self.point.u[:, :2], self.cell[:, :2])
        self.log_factor = cells.log_factor(self.point, self.cell)  # what the log density adds to a sentence's
        legal = [cells.first_legal(self.cell[:, : c + 1]) for c in range(2)]
        self._first_legal = torch.stack(legal, 1)  # of the second and third token

    def mean(self, values: Float[Tensor, "pairs"]) -> Float[Tensor, ""]:
        """Expectation over the pairs, float64."""
        return (self.pairs.weight * values.double()).sum()

    def best(self) -> Float[Tensor, "pairs"]:
        """Log-probabilities of the sentences under the best conditional distribution of each token given what the network sees."""
        before = self.pairs.category[:, None].double()  # all that tells one context from another
        log_p = torch.zeros_like(self.pairs.weight)
        for c, token in enumerate((self.token, self.cell[:, 1], self.cell[:, 2])):
            with_token = torch.cat([before, token[:, None].double()], 1)
            log_p = log_p + self._mass(with_token).log() - self._mass(before).log()
            if c < 2:
                before = torch.cat([before, self.point.chart[:, None].double(), self.seen[:, c, None].double()], 1)
        return log_p

    def _mass(self, context: Float[Tensor, "pairs columns"]) -> Float[Tensor, "pairs"]:
        """Probability of the set of pairs that agree with each pair in every column."""
        return (context[:, None] == context[None]).all(-1).double() @ self.pairs.weight

    def ceiling(self) -> float:
        """The largest mean log-likelihood (volume pi^2) that any network can reach with these bins."""
        return float(self.mean(self.best() + self.log_factor))

    def log_probs(self, model: AQuaMaM, some: Int[Tensor, "some"] | None = None) -> Float[Tensor, "..."]:
        """Log-probabilities of the sentences of all pairs, or of `some`, under a model: `log_prob` minus `log_factor`, but each category
        is encoded once, the head reads nothing twice, and no tensor of N columns outlives its use."""
        device = model.start.device
        some = torch.arange(len(self.token)) if some is None else some
        category = self.pairs.category[some]
        # categories side by side, as the posterior wants its batch: the n-th pair of a category stands in row n
        row = (category[:, None] == category).tril(-1).sum(-1)
        shape = (int(row.max()) + 1, self.pairs.categories)
        seen, chart = torch.zeros(*shape, 2), torch.zeros(shape, dtype=torch.long)
        seen[row, category], chart[row, category] = self.seen[some].float(), self.point.chart[some]
        start, states = model.together(
            torch.arange(self.pairs.categories, device=device), chart.to(device), seen.to(device)
        )
        states = states[row, category].flatten(0, 1)  # (2 some, dim), the two tokens of a pair adjacent
        labels = self.cell[some, 1:].flatten()
        legal = self._first_legal[some].flatten()
        one_chart = model.cells.chart.count == 1
        everything = torch.zeros(len(start), dtype=torch.long)
        if one_chart:  # one head for all three tokens
            hidden = torch.cat([start, states])
            rows_read = torch.cat([category, len(start) + torch.arange(len(states))])
            both = _token_log_probs(
                hidden, model.head, torch.cat([everything, legal]), rows_read, torch.cat([self.token[some], labels])
            )
            first, rest = both.split([len(some), len(states)])
        else:
            first = _token_log_probs(start, model.first_head, everything, category, self.token[some])
            rest = _token_log_probs(states, model.head, legal, torch.arange(len(states)), labels)
        return first + rest.unflatten(0, (-1, 2)).sum(-1)


GROUPS = 2  # of rows with nearly the same legal bins


def _token_log_probs(hidden: Tensor, head: nn.Linear, first_legal: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """log softmax(W h + b)[label] over the legal bins of each row, for some (row, label)."""
    return _TokenLogProbs.apply(hidden, head.weight, head.bias, first_legal, rows, labels)  # type: ignore[no-untyped-call]


def _sum_in_halves(p: Tensor, weight: Tensor) -> Tensor:
    """p @ weight of very many terms: a library splits the result among threads, not the sum, and it is small."""
    half = len(weight) // 2
    halves = torch.bmm(
        p[:, : 2 * half].unflatten(1, (2, half)).transpose(0, 1), weight[: 2 * half].unflatten(0, (2, half))
    )
    total = halves.sum(0)
    return total.addmm_(p[:, 2 * half :], weight[2 * half :]) if len(weight) % 2 else total


def _legal_logits(hidden: Tensor, weight: Tensor, bias: Tensor, more: list[int]) -> Tensor:
    """W h + b; the legal bins of a row are all but the first and the last `more`."""
    z = products.wide_linear(hidden, weight, bias)
    rows = z.numpy() if z.device.type == "cpu" else z  # numpy writes to a hundred slices in a tenth of the time
    for row, illegal in enumerate(more):
        if illegal:
            rows[row, :illegal], rows[row, -illegal:] = -torch.inf, -torch.inf
    return z


class _TokenLogProbs(torch.autograd.Function):
    """With 50,257 bins autograd's own chain of mask, logsumexp and gather would make seven matrices of N columns.

    This makes one, and reads only the legal columns: the rows are sorted by their legal bins and go through the head in
    a few groups, each with the columns that its widest row needs.
    """

    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, first_legal, rows, labels):
        order = first_legal.argsort()
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        size = -(-len(order) // GROUPS)
        log_p = hidden.new_empty(len(rows))
        ctx.groups = []
        for start in range(0, len(order), size):
            members = order[start : start + size]
            low = int(first_legal[members[0]])
            high = len(bias) - low
            here = ((place[rows] >= start) & (place[rows] < start + size)).nonzero().squeeze(1)
            at = (place[rows[here]] - start, labels[here] - low)
            logits = functools.partial(
                _legal_logits, hidden[members], weight[low:high], bias[low:high], (first_legal[members] - low).tolist()
            )
            p = logits()
            torch.softmax(p, 1, out=p)
            log_p[here] = p[at].log()
            tiny = p[at] < 1e-30
            if tiny.any():  # too few digits are left of these
                log_p[here[tiny]] = logits().log_softmax(1)[at][tiny]
            ctx.groups.append((members, low, high, p, here, at))
        ctx.save_for_backward(hidden, weight)
        return log_p

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        hidden, weight = ctx.saved_tensors
        to_hidden, to_weight = torch.empty_like(hidden), torch.empty_like(weight)
        to_bias = weight.new_zeros(len(weight))
        widest = slice(*ctx.groups[0][1:3])  # the others' columns are among the first group's
        to_weight[: widest.start], to_weight[widest.stop :] = 0, 0
        for k, (members, low, high, p, here, at) in enumerate(ctx.groups):
            # the gradient of the logits is that of the labels, a few numbers, minus p times that of its row: p is read, never written
            (row, label), by_label, states = at, grad[here], hidden[members]
            by_row = grad.new_zeros(len(p)).index_put_((row,), by_label, accumulate=True)
            to_row = _sum_in_halves(p, weight[low:high]) * -by_row[:, None]
            to_hidden[members] = to_row.index_put_((row,), by_label[:, None] * weight[low + label], accumulate=True)
            to_weight[low:high].addmm_(p.T, states * by_row[:, None], beta=min(k, 1), alpha=-1)
            to_weight.index_put_((low + label,), by_label[:, None] * states[row], accumulate=True)
            to_bias[low:high].addmv_(p.T, by_row, alpha=-1)
            to_bias.index_put_((low + label,), by_label, accumulate=True)
        ctx.groups = None
        return to_hidden, to_weight, to_bias, None, None, None
