"""Large encoders, an image at a time, by the loops of `lanes` on torch's own threads.

The machine code is made at the first large image, which takes seconds, and kept on disk. Small encoders stay with the libraries: what they
would win is not worth the wait. So do machines without AVX2, without numba, or whose torch has other threads than GNU's OpenMP.
"""

import ctypes
import functools
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from aquamam.network import spare
from aquamam.network.layers import Block, KeysValues

LARGE = 1 << 28  # FLOPs of one layer's products for one image, from which on compiling is worth it
SAMPLE = 16  # numbers of a weight that are compared with what they were when it was packed


def encode(
    layers: nn.ModuleList, x: Float[Tensor, "batch tokens dim"]
) -> tuple[Float[Tensor, "batch dim"], list[KeysValues]] | None:
    """The last state of [START] and every layer's keys and values; None where libraries are the better choice. x is written over."""
    blocks: list[Block] = list(layers)  # type: ignore[arg-type]
    first = blocks[0]
    batch, tokens, dim = x.shape
    hidden = first.linear1.out_features
    if not (batch and suits(layers, tokens) and all(block.unrecorded(x) for block in blocks)):
        return None
    packed = [_packed(block) for block in blocks]  # kept until the end: another thread may find a change and pack anew
    if None in packed:
        return None
    lanes, threads, size = _lanes(), torch.get_num_threads(), dim // first.heads
    x = x.contiguous()
    keys, values = spare.empty(2, len(blocks), batch, first.heads, tokens, size)
    normed, wide = (spare.empty(tokens, n + lanes.ASIDE) for n in (dim, max(3 * dim, hidden)))
    scratch = spare.empty(threads, lanes.scratch_floats(tokens, size))
    counters = np.empty(len(blocks) * lanes.STAGES * lanes.LINE // 8, dtype=np.int64)
    head = (tokens, dim, first.heads, hidden, len(blocks), normed.data_ptr(), wide.data_ptr(), scratch.data_ptr(), scratch.shape[1], counters.ctypes.data)  # fmt: skip
    told = np.array([*head, 0, *(a for p in packed for a in (*p.addresses, 0, 0))], dtype=np.int64)  # type: ignore[union-attr]
    of_layers = told[len(lanes.HEAD) :].reshape(len(blocks), len(lanes.LAYER))
    for image in range(batch):
        counters.fill(0)
        told[len(head)] = x[image].data_ptr()
        for places, column in ((keys, -2), (values, -1)):
            of_layers[:, column] = [layer[image].data_ptr() for layer in places]
        _run(told, threads)
    return x[:, -1], [KeysValues(k, v) for k, v in zip(keys, values)]


def suits(layers: nn.ModuleList, tokens: int) -> bool:
    """Whether encoders like this one are large enough, their widths whole numbers of panels, and the machine one for it."""
    first: Block = layers[0]  # type: ignore[assignment]
    dim, hidden = first.linear1.in_features, first.linear1.out_features
    if 2 * tokens * dim * (4 * dim + 2 * hidden) < LARGE or _region() is None:
        return False
    return not any(width % _lanes().COLUMNS for width in (dim // first.heads, dim, hidden))


@functools.cache
def _lanes() -> Any:
    from aquamam.network import lanes

    return lanes


@functools.cache
def _region() -> Any:
    """GNU OpenMP's parallel region, of the very library that torch computes with: threads of another would take turns with torch's.

    None where it is not to be had, or the loops are not.
    """
    try:
        from aquamam.network.vectors import AVAILABLE

        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libgomp*"))))
        region = library.GOMP_parallel
        from llvmlite import binding

        for name, function in (("wait", library.GOMP_barrier), ("thread_number", library.omp_get_thread_num)):
            binding.add_symbol(f"aquamam_{name}", ctypes.cast(function, ctypes.c_void_p).value)
    except (ImportError, OSError, StopIteration, AttributeError, RuntimeError):
        return None
    region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return region if AVAILABLE else None


@functools.cache
def _code() -> Any:
    return _lanes().compiled()


def _run(told: np.ndarray, threads: int) -> None:
    _region()(_code().address, told.ctypes.data, threads, 0)


# --- packed weights -----------------------------------------------------------------------------------------------------------------


class _Packed(NamedTuple):
    """The weights of a layer in panels, and what the layer was then."""

    state: tuple[int, ...]
    panels: tuple[np.ndarray, ...]
    some: tuple[
        tuple[np.ndarray, np.ndarray], ...
    ]  # of each weight: a view of some of its numbers from all over it, and what they were
    addresses: tuple[int, ...]  # what `lanes.LAYER` names, but for keys and values


# by block: beside the weights, not in them, so that copies and files of a model hold nothing of it
_kept: "weakref.WeakKeyDictionary[nn.Module, _Packed]" = weakref.WeakKeyDictionary()
ORDER = ("norm1", "qkv", "out", "norm2", "linear1", "linear2")  # as in `lanes.LAYER`, a weight and a bias each


def _packed(block: Block) -> _Packed | None:
    """The weights of a layer in panels; None where they cannot be read.

    A packed copy must not outlive a change of its weight. torch counts the changes it sees; those through `.data` it does not, so some of
    the weight's numbers are compared, too: training, loading and averaging change all of a weight.
    """
    parts = [block._modules[name]._parameters for name in ORDER]  # type: ignore[union-attr]
    tensors = [part[kind] for part in parts for kind in ("weight", "bias")]
    if any(t is None or t.is_inference() for t in tensors):
        return None
    state = tuple([t.data_ptr() for t in tensors] + [t._version for t in tensors])  # type: ignore[union-attr]
    kept = _kept.get(block)
    if kept is not None and kept.state == state and all((now == then).all() for now, then in kept.some):
        return kept
    if any(t.device.type != "cpu" or t.dtype != torch.float32 or not t.is_contiguous() for t in tensors):  # type: ignore[union-attr]
        return None
    weights = {i: t.detach().numpy() for i, t in enumerate(tensors) if t.ndim == 2}  # type: ignore[union-attr]
    panels = {i: _panels(weight) for i, weight in weights.items()}
    some = tuple(weight.reshape(-1)[:: max(1, weight.size // SAMPLE)] for weight in weights.values())
    addresses = tuple(panels[i].ctypes.data if i in panels else state[i] for i in range(len(tensors)))
    _kept[block] = _Packed(state, tuple(panels.values()), tuple((now, now.copy()) for now in some), addresses)
    return _kept[block]


def _panels(weight: np.ndarray) -> np.ndarray:
    """(outputs, inputs) -> (panels, inputs, columns), on a cache line."""
    columns, line = _lanes().COLUMNS, _lanes().LINE
    outputs, inputs = weight.shape
    raw = np.empty(weight.nbytes + line, dtype=np.uint8)
    start = -raw.ctypes.data % line
    panels = raw[start : start + weight.nbytes].view(np.float32).reshape(outputs // columns, inputs, columns)
    panels[:] = weight.reshape(outputs // columns, columns, inputs).transpose(0, 2, 1)
    return panels
