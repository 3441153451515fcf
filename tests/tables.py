"""Hand-written logits: posteriors without a network."""

import torch
from torch import Tensor

from aquamam.geometry.cells import Cells
from aquamam.posterior.sentences import QuaternionSentences


class TableConditionals:
    """Logits of the next bin as a fixed smooth random function of what was seen, `scale` times a few waves."""

    def __init__(self, cells: Cells, batch: int = 2, scale: float = 1.0, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.cells, self.batch, self.scale = cells, batch, scale
        self.row_floats = 64
        self.table = torch.randn(batch, cells.first_tokens, generator=generator)
        self.mix = torch.randn(batch, 2, 3, cells.bins, generator=generator)

    def some(self, images: Tensor | slice) -> "TableConditionals":
        new = object.__new__(TableConditionals)
        new.__dict__ = {**self.__dict__, "table": self.table[images], "mix": self.mix[images]}
        new.batch = len(new.table)
        return new

    def first(self) -> Tensor:
        return self.scale * self.table

    def rest(self, chart, seen, past=()):
        before = past[0] if past else seen.new_zeros((*chart.shape, 0))
        values = torch.cat([before, seen], -1)
        logits = []
        for c in range(before.shape[-1], values.shape[-1]):
            a, b = values[..., 0], values[..., c]
            waves = torch.stack([torch.sin(5 * a + chart), torch.cos(7 * b), torch.sin(3 * a * b + 1)], -1)
            logits.append(torch.einsum("rbw,bwn->rbn", waves, self.mix[:, c]))
        return self.scale * torch.stack(logits, 2), (values,)


def table_posterior(cells: Cells, **options) -> QuaternionSentences:
    return QuaternionSentences(TableConditionals(cells, **options), cells)


def legal_cells(cells: Cells) -> Tensor:
    """All legal cells of one chart, (L, 3)."""
    n = torch.arange(cells.bins)
    pairs = torch.stack(torch.meshgrid(n, n, indexing="ij"), -1).reshape(-1, 2)
    pairs = pairs[cells.legal(pairs[:, :1])[torch.arange(len(pairs)), pairs[:, 1]]]
    row, third = cells.legal(pairs).nonzero(as_tuple=True)
    return torch.cat([pairs[row], third[:, None]], -1)
