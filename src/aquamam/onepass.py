"""Large encoders, an image at a time, by the loops of `lanes` on torch's own threads.

The machine code is made at the first large image, which takes seconds, and kept on disk. Small encoders stay with the libraries: what they
would win is not worth the wait. So do machines without AVX2, without numba, or whose torch has other threads than GNU's OpenMP.
"""

import ctypes
import functools
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from aquamam import spare
from aquamam.layers import Block, KeysValues

LARGE = 1 << 28  # FLOPs of one layer's products for one image, from which on compiling is worth it
SAMPLE = 16  # numbers of a weight that are compared with what they were when it was packed


def encode(
    blocks: Sequence[Block], x: Float[Tensor, "batch tokens dim"]
) -> tuple[Float[Tensor, "batch dim"], list[KeysValues]] | None:
    """The last state of [START] and every layer's keys and values; None where libraries are the better choice. x is written over."""
    first = blocks[0]
    batch, tokens, dim = x.shape
    hidden = first.linear1.out_features
    if 2 * tokens * dim * (4 * dim + 2 * hidden) < LARGE or not batch or not all(b.unrecorded(x) for b in blocks):
        return None
    if not _fits(dim, first.heads, hidden):
        return None
    packs = _packs(blocks)
    if packs is None:
        return None
    threads = torch.get_num_threads()
    lanes = _lanes()
    x = x.contiguous()
    keys, values = spare.empty(2, len(blocks), batch, first.heads, tokens, dim // first.heads)
    need = lanes.scratch_floats(tokens, dim // first.heads)
    normed, wide = (spare.empty(tokens, n + lanes.ASIDE) for n in (dim, max(3 * dim, hidden)))
    scratch = spare.empty(threads, need)
    counters = np.empty(len(blocks) * lanes.STAGES * lanes.LINE // 8, dtype=np.int64)
    addresses = _addresses(blocks, packs)
    told = np.empty(len(lanes.HEAD) + addresses.size, dtype=np.int64)
    rows = told[len(lanes.HEAD) :].reshape(len(blocks), len(lanes.LAYER))
    for image in range(batch):
        counters.fill(0)
        told[: len(lanes.HEAD)] = (
            tokens, dim, first.heads, hidden, len(blocks), x[image].data_ptr(),
            normed.data_ptr(), wide.data_ptr(), scratch.data_ptr(), need, counters.ctypes.data,
        )  # fmt: skip
        rows[:] = addresses
        for places, column in ((keys, -2), (values, -1)):
            rows[:, column] = places[0, image].data_ptr() + 4 * places.stride(0) * np.arange(len(blocks))
        _run(told, threads)
    return x[:, -1], [KeysValues(k, v) for k, v in zip(keys, values)]


@functools.cache
def _lanes() -> Any:
    from aquamam import lanes

    return lanes


@functools.cache
def _region() -> Any:
    """GNU OpenMP's parallel region, of the very library that torch computes with: threads of another would take turns with torch's.

    None where it is not to be had, or the loops are not.
    """
    try:
        lanes = _lanes()
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libgomp*"))))
        region = library.GOMP_parallel
        from llvmlite import binding

        for name, function in (("wait", library.GOMP_barrier), ("thread_number", library.omp_get_thread_num)):
            binding.add_symbol(f"aquamam_{name}", ctypes.cast(function, ctypes.c_void_p).value)
    except (ImportError, OSError, StopIteration, AttributeError):
        return None
    region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return region if lanes.AVAILABLE else None


@functools.cache
def _code() -> Any:
    return _lanes().compiled()


def _run(told: np.ndarray, threads: int) -> None:
    _region()(_code().address, told.ctypes.data, threads, 0)


def _fits(dim: int, heads: int, hidden: int) -> bool:
    """Whether widths are whole numbers of panels."""
    if _region() is None:
        return False
    columns = _lanes().COLUMNS
    return not (dim // heads % columns or dim % columns or hidden % columns)


# --- packed weights -----------------------------------------------------------------------------------------------------------------


class _Pack(NamedTuple):
    """A weight in panels, and what the weight was then."""

    state: tuple[int, int]
    panels: np.ndarray
    some: Float[Tensor, "sample"]
    then: Float[Tensor, "sample"]


# by block: beside the weights, not in them, so that copies and files of a model hold nothing of it
_kept: "weakref.WeakKeyDictionary[nn.Module, list[_Pack]]" = weakref.WeakKeyDictionary()
NAMES = ("qkv", "out", "linear1", "linear2")


def _packs(blocks: Sequence[Block]) -> list[tuple[_Pack, ...]] | None:
    """The weights of all layers in panels; None where one cannot be read.

    A packed copy must not outlive a change of its weight. torch counts the changes it sees; those through `.data` it does not, so some of
    the weight's numbers are compared, too: training, loading and averaging change all of a weight.
    """
    found: list[tuple[_Pack, ...]] = []
    for block in blocks:
        if any(not _readable(p) for p in block.parameters()):
            return None
        kept = _kept.setdefault(block, [])
        for i, name in enumerate(NAMES):
            weight = getattr(block, name).weight
            state = (weight.data_ptr(), weight._version)
            if i < len(kept) and kept[i].state == state and torch.equal(kept[i].some, kept[i].then):
                continue
            some = weight.detach().as_strided((SAMPLE,), (weight.numel() // SAMPLE,))
            kept[i : i + 1] = [_Pack(state, _panels(weight.detach()), some, some.clone())]
        found.append(tuple(kept))  # another thread may find a change and replace what this one uses
    return found


def _readable(p: Tensor) -> bool:
    return p.device.type == "cpu" and p.dtype == torch.float32 and p.is_contiguous() and not p.is_inference()


def _panels(weight: Float[Tensor, "outputs inputs"]) -> np.ndarray:
    """(outputs, inputs) -> (panels, inputs, columns), on a cache line."""
    columns, line = _lanes().COLUMNS, _lanes().LINE
    outputs, inputs = weight.shape
    raw = np.empty(4 * weight.numel() + 2 * line, dtype=np.uint8)  # what comes after it is asked for, too
    start = -raw.ctypes.data % line
    panels = raw[start : start + 4 * weight.numel()].view(np.float32).reshape(outputs // columns, inputs, columns)
    panels[:] = weight.numpy().reshape(outputs // columns, columns, inputs).transpose(0, 2, 1)
    return panels


def _addresses(blocks: Sequence[Block], packs: list[tuple[_Pack, ...]]) -> np.ndarray:
    """What `lanes.LAYER` names, but for the keys and values, a row a layer."""

    def of(block: Block, kept: tuple[_Pack, ...]) -> Iterator[int]:
        qkv, out, linear1, linear2 = (pack.panels.ctypes.data for pack in kept)
        for norm, *linears in (
            (block.norm1, (qkv, block.qkv), (out, block.out)),
            (block.norm2, (linear1, block.linear1), (linear2, block.linear2)),
        ):
            yield from (norm.weight.data_ptr(), norm.bias.data_ptr())
            for panels, layer in linears:
                yield from (panels, layer.bias.data_ptr())
        yield from (0, 0)

    return np.array([list(of(block, kept)) for block, kept in zip(blocks, packs)], dtype=np.int64)
