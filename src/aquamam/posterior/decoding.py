"""How decoding goes from one token to the next: by beams or at random; and prefixes that share a pass."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from aquamam.geometry.directional import inverse_cdf

# (log-probability so far (R, B), log-probabilities of the next token (R, B, K)) -> parent row and token of each new row
# (R', B)
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def beam(width: int) -> Choose:
    """The best `width` sentences so far; with one it is greedy."""

    def choose(total: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
        rows, batch, tokens = log_p.shape
        joint = (total[..., None] + log_p).transpose(0, 1).reshape(batch, rows * tokens)
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
