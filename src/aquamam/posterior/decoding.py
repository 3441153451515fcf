"""How decoding goes from one token to the next: greedily, by beams, or at random; and prefixes that share a pass."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

# (log-probability so far (R, B), log-probabilities of the next token (R, B, K)) -> parent row and token of each new row
# (R', B); no parents where every row is its own
Choose = Callable[[Tensor, Tensor], tuple[Tensor | None, Tensor]]


def beam(width: int) -> Choose:
    """The best `width` sentences so far; with one it is greedy."""

    def choose(total: Tensor, log_p: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, batch, tokens = log_p.shape
        if width == rows == 1:
            return None, log_p.argmax(-1)
        joint = (total[..., None] + log_p).transpose(0, 1).reshape(batch, rows * tokens)
        best = joint.topk(min(width, rows * tokens), dim=-1).indices.T
        return best // tokens, best % tokens

    return choose


def sampler(count: int, generator: torch.Generator) -> Choose:
    """Inverse CDF: one uniform number a row, none for bins of probability zero."""

    def choose(total: Tensor, log_p: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, batch, _ = log_p.shape
        u = torch.rand((count, batch), generator=generator, dtype=torch.float64, device=log_p.device)
        if rows == 1:  # all samples of an image share one CDF
            cdf = log_p[0].double().exp().cumsum(-1)
            token = torch.searchsorted(cdf, _below(u.T * cdf[:, -1:], cdf[:, -1:]).contiguous(), right=True).T
            return torch.zeros_like(token), token
        return None, inverse_cdf(log_p.exp(), u)

    return choose


def inverse_cdf(
    p: Float[Tensor, "rotations batch tokens"], u: Float[Tensor, "rotations batch"], width: int = 64
) -> Int[Tensor, "rotations batch"]:
    """The token at which the cumulative probability passes u: first its block of 64, then its place in the block.

    One running sum in double over 50,257 tokens would be most of the time that a sample takes.
    """
    padded = F.pad(p, (0, -p.shape[-1] % width)).unflatten(-1, (-1, width))
    cdf = padded.sum(-1).double().cumsum(-1)
    target = _below(u[..., None] * cdf[..., -1:], cdf[..., -1:])
    block = torch.searchsorted(cdf, target, right=True)
    before = F.pad(cdf, (1, 0)).gather(-1, block)
    share = (target - before) / (cdf.gather(-1, block) - before)  # uniform again, now inside the block
    inside = padded.gather(-2, block[..., None].expand(*block.shape, width)).squeeze(-2).double().cumsum(-1)
    place = torch.searchsorted(inside, _below(share * inside[..., -1:], inside[..., -1:]), right=True)
    return (block * width + place).squeeze(-1)


def _below(x: Tensor, limit: Tensor) -> Tensor:
    """x, but less than the limit even after rounding: at the limit itself the search would leave the table."""
    return torch.minimum(x, torch.nextafter(limit, torch.zeros_like(limit)))


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
