"""Memory for results that outlive a pass through the network, given out again once nobody holds them.

The system maps fresh memory page by page as it is first written, which can take longer than computing what is written; and an allocator
gives large blocks back as soon as they are free. What runs again and again therefore keeps a little.
"""

import math
import threading
import weakref

import numpy as np
import torch
from torch import Tensor

BYTES = 1 << 27  # that are kept at most; what does not fit comes from the allocator
ALIGNED = 64  # bytes, as torch's own


class _Block:
    """Some memory, and whether somebody holds it: a tensor on it keeps an array alive, which nothing else does."""

    def __init__(self, size: int):
        raw = np.empty(size + ALIGNED, dtype=np.uint8)
        start = -raw.ctypes.data % ALIGNED
        self.memory = raw[start : start + size]
        self._holder: weakref.ref[np.ndarray] | None = None

    @property
    def free(self) -> bool:
        return self._holder is None or self._holder() is None

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        holder = self.memory.view(np.float32)
        self._holder = weakref.ref(holder)
        return torch.from_numpy(holder).view(shape)


_lock = threading.Lock()
_blocks: list[_Block] = []


def empty(*shape: int) -> Tensor:
    """A float32 tensor on the CPU, its numbers not set."""
    size = 4 * math.prod(shape)
    if not 0 < size <= BYTES:
        return torch.empty(shape)
    with _lock:
        block = next((b for b in _blocks if b.free and len(b.memory) == size), None) or _new(size)
        return block.tensor(shape)


def _new(size: int) -> _Block:
    """Kept if there is room for it, or free blocks of other sizes make room."""
    kept = sum(len(b.memory) for b in _blocks)
    for block in [b for b in _blocks if b.free]:
        if kept + size <= BYTES:
            break
        kept -= len(block.memory)
        _blocks.remove(block)
    block = _Block(size)
    if kept + size <= BYTES:
        _blocks.append(block)
    return block
