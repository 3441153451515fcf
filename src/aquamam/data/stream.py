"""Batches for training and evaluation: seeded, shared out between ranks, resumed by step, made ahead by threads.

Threads suffice: rendering, decoding and copying all release Python's lock.
"""

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from jaxtyping import Int64

from aquamam.data.augment import AUGMENTATIONS, AugmentSettings, augment
from aquamam.data.base import Batch, RotationDataset
from aquamam.data.random import words
from aquamam.errors import InputError, require

Item, Result = TypeVar("Item"), TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Endless training batches; batch `step` of a rank is a pure function of the fields here.

    A finite data set is shuffled anew each epoch, and batches run across the ends of epochs, so all are full (but for
    unreadable images, which are left out and named in `Batch.unreadable`). All ranks together see every example once
    an epoch.
    """

    dataset: RotationDataset
    batch_size: int  # of this rank
    seed: int = 0
    rank: int = 0
    world: int = 1
    augment: AugmentSettings = AUGMENTATIONS["none"]
    threads: int = 2  # 0 makes each batch when it is asked for

    def __post_init__(self) -> None:
        require(self.batch_size > 0, f"a batch holds at least 1 example, got {self.batch_size}.")
        there = 0 <= self.rank < self.world
        require(there, f"rank must be in 0 ... world - 1, got rank={self.rank}, world={self.world}.")
        some = self.dataset.endless or len(self.dataset) > 0
        require(some, "the data set is empty; training needs at least one example.")

    def positions(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Places of a batch in the endless sequence that all ranks share."""
        first = (step * self.world + self.rank) * self.batch_size
        return np.arange(first, first + self.batch_size, dtype=np.int64)

    def indices(self, step: int) -> list[int]:
        positions = self.positions(step)
        if self.dataset.endless:
            return positions.tolist()
        length = len(self.dataset)
        epochs, places = np.divmod(positions, length)
        return [int(_order(self.seed, epoch, length)[place]) for epoch, place in zip(epochs.tolist(), places)]

    def batch(self, step: int) -> Batch:
        indices = self.indices(step)
        batch = self.dataset.batch(indices, unreadable="skip")
        kept = np.isin(indices, batch.indices)  # the others are unreadable
        return augment(batch, self.augment, seed=self.seed, positions=self.positions(step)[kept])

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batches from step `start` on, made ahead by threads; resuming is calling it with the next step."""
        return prefetch(self.batch, itertools.count(start), threads=self.threads)


@lru_cache(4)  # batches of one epoch before may still be on their way
def _order(seed: int, epoch: int, length: int) -> Int64[np.ndarray, " n"]:
    """A data set shuffled for an epoch."""
    return np.argsort(words(seed, f"epoch {epoch}", np.arange(length), 1)[:, 0], kind="stable")


def one_pass(
    dataset: RotationDataset,
    batch_size: int,
    *,
    rank: int = 0,
    world: int = 1,
    limit: int | None = None,
    threads: int = 2,
    unreadable: str = "raise",
) -> Iterator[Batch]:
    """Every example (or the first `limit`) once, in order, for evaluation; rank r takes every world-th batch."""
    if batch_size < 1 or (limit is not None and limit < 1):
        raise InputError(f"batch_size and limit must be at least 1, got {batch_size} and {limit}.")
    if limit is None and dataset.endless:
        raise InputError("one pass over an endless data set never ends; give limit, the number of examples.")
    count = min(limit or sys.maxsize, sys.maxsize if dataset.endless else len(dataset))

    def make(start: int) -> Batch:
        return dataset.batch(range(start, min(start + batch_size, count)), unreadable=unreadable)

    return prefetch(make, range(rank * batch_size, count, world * batch_size), threads=threads)


def prefetch(make: Callable[[Item], Result], items: Iterable[Item], *, threads: int) -> Iterator[Result]:
    """`map(make, items)` in order, with some results made before they are asked for."""
    if threads == 0:
        yield from map(make, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="aquamam-data")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(make, item))
            if len(pending) > threads + 2:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
