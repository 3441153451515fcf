r"""Data of finitely many (category, rotation) pairs, whose expected loss is a sum instead of an average over random batches.

The paper's toy data has 63 pairs and six categories. A step that encodes each category once, and reads the head only where a pair needs
it, gives the exact expected loss for the price of 63 pairs; a random batch is the same sum with the drawn multiplicities as weights.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aquamam.cells import Cells
from aquamam.model import AQuaMaM
from aquamam.rotations import as_unit_quat


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


class Sentences:
    """The token sequences of pairs under a model's cells, and their log-probabilities."""

    def __init__(self, pairs: Pairs, cells: Cells):
        self.pairs, self.cells = pairs, cells
        self.point = cells.chart.split(pairs.q)
        self.cell = cells.locate(self.point)
        self.token = self.point.chart * cells.bins + self.cell[:, 0]
        self.seen = cells.seen(self.point.u[:, :2], self.cell[:, :2])
        self.log_factor = cells.log_factor(self.point, self.cell)  # what the log density adds to a sentence's
        legal = [cells.first_legal(self.cell[:, : c + 1]) for c in range(2)]
        self._first_legal = torch.stack(legal, 1).flatten()
        # Categories side by side, as the posterior wants its batch: pair p stands at row self._row[p], column category[p].
        same = pairs.category[:, None] == pairs.category
        self._row = same.tril(-1).sum(-1)
        shape = (int(self._row.max()) + 1, pairs.categories)
        self._seen = torch.zeros(*shape, 2)
        self._seen[self._row, pairs.category] = self.seen.float()
        self._chart = torch.zeros(shape, dtype=torch.long)
        self._chart[self._row, pairs.category] = self.point.chart

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

    def log_probs(self, model: AQuaMaM) -> Float[Tensor, "pairs"]:
        """Log-probabilities of the sentences under a model: `log_prob` minus `log_factor`, but each category is encoded once, the
        head sees no padding, and no tensor of N columns outlives its use."""
        prefix = model.encode(torch.arange(self.pairs.categories))
        states, _ = prefix.states(self._chart, self._seen)
        states = states[self._row, self.pairs.category].flatten(
            0, 1
        )  # (2 pairs, dim), the two tokens of a pair adjacent
        one_chart = model.cells.chart.count == 1
        head: Any = model.head if one_chart else model.first_head
        start = model.norm(prefix.start)
        first_rows, rest_rows = self.pairs.category, torch.arange(len(states))
        rest_labels = self.cell[:, 1:].flatten()
        if one_chart:  # one head for all three tokens: one product
            hidden, rows = torch.cat([start, states]), torch.cat([first_rows, len(start) + rest_rows])
            legal = torch.cat([torch.zeros(len(start), dtype=torch.long), self._first_legal])
            both = _token_log_probs(hidden, head, legal, rows, torch.cat([self.token, rest_labels]))
            first, rest = both.split([len(first_rows), len(rest_rows)])
        else:
            none = torch.zeros(len(start), dtype=torch.long)
            first = _token_log_probs(start, head, none, first_rows, self.token)
            rest = _token_log_probs(states, model.head, self._first_legal, rest_rows, rest_labels)
        return first + rest.unflatten(0, (-1, 2)).sum(-1)


def _token_log_probs(hidden: Tensor, head: nn.Linear, first_legal: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    return _TokenLogProbs.apply(hidden, head.weight, head.bias, first_legal.tolist(), rows, labels)  # type: ignore[no-untyped-call]


class _TokenLogProbs(torch.autograd.Function):
    """log softmax(W h + b)[label] over the legal bins, for some (row, label): one matrix of N columns, worked on in place.

    With 50,257 bins autograd's own chain of mask, logsumexp and gather would make seven such matrices.
    """

    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, first_legal: list[int], rows, labels):
        z = torch.addmm(bias, hidden, weight.T)
        for row, first in enumerate(first_legal):  # the legal bins are the middle of a row
            z[row, :first] = -torch.inf
            z[row, len(bias) - first :] = -torch.inf
        chosen = z[rows, labels]
        top = z.amax(1, keepdim=True)
        z.sub_(top).exp_()
        total = z.sum(1, keepdim=True)
        ctx.z, ctx.total, ctx.rows, ctx.labels = z, total, rows, labels
        ctx.save_for_backward(hidden, weight)
        return chosen - (total.log() + top)[rows, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad):
        hidden, weight = ctx.saved_tensors
        z = ctx.z
        ctx.z = None  # it becomes the gradient of the logits, so a second backward pass cannot use it
        by_row = torch.zeros(len(z), dtype=grad.dtype).index_add_(0, ctx.rows, grad)
        z.mul_(-by_row[:, None] / ctx.total)
        z.index_put_((ctx.rows, ctx.labels), grad, accumulate=True)
        return z @ weight, z.T @ hidden, z.sum(0), None, None, None
