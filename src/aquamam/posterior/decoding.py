"""How decoding goes from one token to the next: greedily, by beams, or at random; and rows that are equal so far, which share a pass."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

FEWER = 1.25  # rows a pass from which on sampling shares passes


class Passes(NamedTuple):
    """Rows whose sentences are equal so far go through the network as one."""

    place: Int[Tensor, "rotations batch"]  # the pass of each row
    row: Int[Tensor, "passes batch"]  # a row of each pass; images with fewer passes than others repeat some

    @classmethod
    def of(cls, code: Int[Tensor, "rotations batch"]) -> "Passes":
        """Rows with equal codes share a pass."""
        code, order = code.sort(0)
        new = torch.ones_like(code, dtype=torch.bool)
        new[1:] = code[1:] != code[:-1]
        place = new.cumsum(0) - 1
        passes = int(place.max()) + 1 if place.numel() else 0
        row = order[:1].repeat(passes, 1).scatter_(0, place, order)
        return cls(torch.empty_like(order).scatter_(0, order, place), row)

    def if_fewer(self) -> "Passes | None":
        """None where the passes are nearly as many as the rows, so that each row may as well have its own."""
        return self if FEWER * len(self.row) <= len(self.place) else None

    def pick(self, values: Tensor) -> Tensor:
        """Of values a row, (rotations, batch, ...), those a pass."""
        return values[self.row, torch.arange(values.shape[1], device=values.device)]

    def spread(self, values: Tensor) -> Tensor:
        """Of values a pass, those of each row."""
        return values[self.place, torch.arange(values.shape[1], device=values.device)]


# (log-probability so far (R, B), log-probabilities of the next token (R, B, K), passes of the rows) -> parent row and token of each new
# row (R', B); no parents where every row is its own. With passes, the log-probabilities are those of the passes.
Choose = Callable[[Tensor, Tensor, Passes | None], tuple[Tensor | None, Tensor]]


def beam(width: int) -> Choose:
    """The best `width` sentences so far; with one it is greedy."""

    def choose(total: Tensor, log_p: Tensor, passes: Passes | None) -> tuple[Tensor | None, Tensor]:
        rows, batch, tokens = log_p.shape
        if width == rows == 1:
            return None, log_p.argmax(-1)
        joint = (total[..., None] + log_p).transpose(0, 1).reshape(batch, rows * tokens)
        best = joint.topk(min(width, rows * tokens), dim=-1).indices.T
        return best // tokens, best % tokens

    return choose


def sampler(count: int, generator: torch.Generator) -> Choose:
    """Inverse CDF: one uniform number a row, none for bins of probability zero."""

    first = True

    def choose(total: Tensor, log_p: Tensor, passes: Passes | None) -> tuple[Tensor | None, Tensor]:
        nonlocal first
        batch, first_now, first = log_p.shape[1], first, False
        u = torch.rand((count, batch), generator=generator, dtype=torch.float64, device=log_p.device)
        if first_now:  # all samples of an image share one CDF
            cdf = log_p[0].double().exp().cumsum(-1)
            target = _below(u.T * cdf[:, -1:], cdf[:, -1:]).contiguous()
            return torch.zeros_like(u, dtype=torch.long), torch.searchsorted(cdf, target, right=True).T
        return None, inverse_cdf(log_p.exp(), u, passes)

    return choose


def inverse_cdf(
    p: Float[Tensor, "passes batch tokens"],
    u: Float[Tensor, "rotations batch"],
    passes: Passes | None = None,
    width: int = 64,
) -> Int[Tensor, "rotations batch"]:
    """The token at which the cumulative probability passes u: first its block of 64, then its place in the block.

    Without passes every row of u has its own of p. One running sum in double over 50,257 tokens would be most of the time that a sample
    takes.
    """
    tokens = p.shape[-1]
    whole = tokens - tokens % width
    blocks = p[..., :whole].unflatten(-1, (-1, width)).sum(-1)
    cdf = torch.cat([blocks, p[..., whole:].sum(-1, keepdim=True)], -1).double().cumsum(-1)
    if passes is not None:
        cdf = passes.spread(cdf).contiguous()
    target = _below(u[..., None] * cdf[..., -1:], cdf[..., -1:])
    block = torch.searchsorted(cdf, target, right=True)
    before = F.pad(cdf, (1, 0)).gather(-1, block)
    share = (target - before) / (cdf.gather(-1, block) - before)  # uniform again, now inside the block
    places = block * width + torch.arange(width, device=p.device)
    if passes is None:
        near = p.gather(-1, places.clamp_max(tokens - 1))
    else:
        near = p[
            passes.place[..., None], torch.arange(p.shape[1], device=p.device)[:, None], places.clamp_max(tokens - 1)
        ]
    inside = torch.where(places < tokens, near, 0.0).double().cumsum(-1)
    place = torch.searchsorted(inside, _below(share * inside[..., -1:], inside[..., -1:]), right=True)
    return (block * width + place).squeeze(-1)


def _below(x: Tensor, limit: Tensor) -> Tensor:
    """x, but less than the limit even after rounding: at the limit itself the search would leave the table."""
    return torch.minimum(x, torch.nextafter(limit, torch.zeros_like(limit)))
