"""Linear maps that nobody will ask gradients of: the numbers of `nn.Linear`, by whichever library is quickest for so many rows.

MKL is, from several hundred rows on, and for numbers of rows that come again and again: a caller who says `again` has the weight packed for
that number once. oneDNN is in between, as it adds a bias, a residual or a GELU while it writes. Few rows are a matter of the number of
operations. What is taken depends on shapes alone, never on what ran before: equal calls give equal bits.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

# what torch.compile itself calls on CPUs; builds without oneDNN or MKL lack them
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
MKL = getattr(torch.ops.mkl, "_mkl_linear", None) if torch.backends.mkl.is_available() else None
FEW = 32  # rows that are not worth their set-up
MANY = 512  # rows beyond which oneDNN is slower than MKL, for some numbers by a third
KEPT = 2  # packed copies of one weight: one image, and as many as are encoded at once
SAMPLE = 16  # numbers of a weight that are compared with what they were when it was packed


def linear(
    x: Float[Tensor, "*rows before"], layer: nn.Linear | nn.Conv2d, *, skip: int = 0, again: bool = False
) -> Float[Tensor, "*rows after"]:
    """layer(x), without its first `skip` outputs; a convolution is one whose patches are the rows of x."""
    weight, bias = layer.weight[skip:].flatten(1), layer.bias[skip:]  # type: ignore[index]
    packed = _packed(x, layer.weight, skip) if again else None
    if packed is not None:
        return MKL(x, packed, weight, bias, x.numel() // x.shape[-1])  # type: ignore[misc]
    return ONEDNN(x, weight, bias, "none", [], "none") if _by_onednn(x) else F.linear(x, weight, bias)  # type: ignore[misc]


def wide_linear(x: Float[Tensor, "rows before"], weight: Tensor, bias: Tensor) -> Float[Tensor, "rows after"]:
    """x W^T + b for few rows and very many outputs, where a bias that is copied first takes a third of the time."""
    if ONEDNN is not None and x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.enabled:
        return ONEDNN(x, weight, bias, "none", [], "none")
    return F.linear(x, weight, bias)


def linear_gelu(
    x: Float[Tensor, "rows before"], layer: nn.Linear, *, again: bool = False
) -> Float[Tensor, "rows after"]:
    """gelu(layer(x))"""
    packed = _packed(x, layer.weight) if again else None
    if packed is not None:
        return torch.ops.aten.gelu_(MKL(x, packed, layer.weight, layer.bias, len(x)))  # type: ignore[misc]
    if _by_onednn(x):
        return ONEDNN(x, layer.weight, layer.bias, "gelu", [], "none")  # type: ignore[misc]
    y = few_linear(x, layer)
    return few_gelu(y) if len(x) < FEW else torch.ops.aten.gelu_(y)


def few_gelu(x: Tensor) -> Tensor:
    """gelu(x) of few numbers: oneDNN's takes ten times as long to set up."""
    return torch.erf(x * math.sqrt(0.5)).add_(1).mul_(x).mul_(0.5)


def few_linear(x: Float[Tensor, "*rows before"], layer: nn.Linear) -> Float[Tensor, "*rows after"]:
    """layer(x) without the ceremony of calling a module."""
    return F.linear(x, layer.weight, layer.bias)


def few_norm(x: Float[Tensor, "*rows dim"], norm: nn.LayerNorm) -> Float[Tensor, "*rows dim"]:
    """norm(x), likewise."""
    return torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def plus_linear(
    base: Float[Tensor, "rows after"],
    x: Float[Tensor, "rows before"],
    layer: nn.Linear,
    *,
    again: bool = False,
    in_place: bool = False,
) -> Float[Tensor, "rows after"]:
    """base + layer(x), written over the base if that is allowed."""
    packed = _packed(x, layer.weight) if again else None
    if packed is not None:
        y = MKL(x, packed, layer.weight, layer.bias, len(x))  # type: ignore[misc]
        return base.add_(y) if in_place else y.add_(base)
    if _by_onednn(x):
        y = ONEDNN.binary(x, base, layer.weight, layer.bias, "add")  # type: ignore[union-attr]
        return base.copy_(y) if in_place else y
    y = base.add_(layer.bias) if in_place else torch.add(base, layer.bias)
    return y.addmm_(x, layer.weight.t())


def _by_onednn(x: Tensor) -> bool:
    fitting = FEW * x.shape[-1] <= x.numel() <= MANY * x.shape[-1]
    return ONEDNN is not None and fitting and bool(torch.backends.mkldnn.enabled)  # type: ignore[attr-defined]


# --- packed weights -----------------------------------------------------------------------------------------------------------------


class _Pack(NamedTuple):
    """A weight as MKL wants it for one number of rows."""

    state: tuple[int, ...]  # of the weight, when it was packed
    tensor: Tensor
    some: Float[Tensor, "sample"]  # a view of some of the weight's numbers, from all over it
    then: Float[Tensor, "sample"]  # what they were


# (outputs skipped, rows) -> pack, by weight: beside the weights, not in them, so that copies and files of a model hold nothing of it
_packs = WeakTensorKeyDictionary()


def _packed(x: Tensor, weight: Tensor, skip: int = 0) -> Tensor | None:
    """The weight packed for as many rows as x has; None where it cannot be.

    A packed copy must not outlive a change of its weight. torch counts the changes it sees; those through `.data` it does not, so some of
    the weight's numbers are compared, too: training, loading and averaging change all of a weight.
    """
    rows = x.numel() // x.shape[-1]
    if rows < FEW or MKL is None or weight.is_inference() or not weight.is_contiguous():
        return None
    packs: dict[tuple[int, int], _Pack] = _packs.setdefault(weight, {})
    state = (torch.get_num_threads(), weight.data_ptr(), weight._version)
    pack = packs.get((skip, rows))
    if pack is None or pack.state != state or not torch.equal(pack.some, pack.then):
        while len(packs) >= KEPT:
            packs.pop(next(iter(packs)), None)
        count = min(SAMPLE, weight.numel())
        some = weight.detach().as_strided((count,), (weight.numel() // count,))
        tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach()[skip:].flatten(1), rows)
        pack = packs[skip, rows] = _Pack(state, tensor, some, some.clone())
    return pack.tensor
