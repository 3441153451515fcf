"""Render a data set to disk with many processes; killed and started again, it goes on and ends with the same bytes."""

import errno
import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from aquamam.data.disk.layout import Manifest, encode_png, is_whole, write_manifest, write_shard
from aquamam.data.random import haar, words
from aquamam.errors import require
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderSpec:
    """What decides every byte of rendered examples: example i of a split shows meshes[i % len(meshes)] under a
    uniformly random rotation. No torch here: the processes that render import only what they need."""

    names: tuple[str, ...]  # the objects' names, which are the classes
    meshes: tuple[Mesh, ...]
    settings: RenderSettings
    seed: int = 0

    def __post_init__(self) -> None:
        good = 0 < len(set(self.names)) == len(self.meshes)
        require(good, f"objects of a data set need different names, got {', '.join(self.names) or 'none'}.")

    def rotations(self, split: str, numbers: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 4"]:
        return haar(self.seed, f"{split}/rotation", numbers)

    def images(
        self, split: str, numbers: Int64[np.ndarray, " n"], rotations: Float64[np.ndarray, "n 4"]
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """Pictures of the examples; `rotations` are theirs."""
        out = np.empty((len(numbers), *self.settings.shape, 3), np.uint8)
        backgrounds = None
        if self.settings.background == "random":
            backgrounds = words(self.seed, f"{split}/background", numbers, 3).astype(np.uint8)
        for k, mesh in enumerate(self.meshes):
            shown = np.flatnonzero(numbers % len(self.meshes) == k)
            own = None if backgrounds is None else backgrounds[shown]
            out[shown] = render(mesh, rotations[shown], self.settings, backgrounds=own)
        return out


CHUNK = 64  # images rendered at once
Task = tuple[str, int]  # split and shard number


def write_dataset(
    root: Path,
    spec: RenderSpec,
    manifest: Manifest,
    *,
    workers: int = 1,
    part: tuple[int, int] = (0, 1),
    progress: Callable[[int, int], Callable[[int], None]] = lambda total, done: lambda images: None,
) -> tuple[int, int]:
    """Render every missing shard of part i of n; the number of images of this part, and how many of them are new.

    `progress(total, done)` gives what to call with numbers of new images.
    """
    i, n = part
    require(0 <= i < n, f"part i of n needs 0 <= i < n, got {i}/{n}.")
    require(workers > 0, f"rendering needs at least 1 worker, got {workers}.")
    write_manifest(root, manifest)
    mine = [(split, shard) for split in manifest.splits for shard in range(manifest.shards(split))][i::n]

    def missing() -> list[Task]:
        return [task for task in mine if not is_whole(manifest.files(root, *task))]

    def images_of(tasks: list[Task]) -> int:
        return sum(len(manifest.shard_range(*task)) for task in tasks)

    tasks, total = missing(), images_of(mine)
    new = images_of(tasks)
    report = progress(total, total - new)
    try:
        together = min(workers, len(tasks))
        one_by_one = (count for task in tasks for count in render_shard(root, spec, manifest, task))
        for images in one_by_one if together <= 1 else _render_with(together, root, spec, manifest, tasks):
            report(images)
    except BrokenProcessPool as error:
        reason = "a rendering process ended, perhaps for want of memory"
        raise OSError(f"{reason}; run the same command with fewer workers to go on.") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        there = f"the disk of {root} is full after {total - images_of(missing())} of {total} images, all of them whole"
        raise OSError(f"{there}; make room and run the same command again to go on.") from error
    return total, new


def render_shard(root: Path, spec: RenderSpec, manifest: Manifest, task: Task) -> Iterator[int]:
    """Render and write one shard, a pure function of the spec and the task; yields numbers of new images."""
    split, shard = task
    numbers = np.asarray(manifest.shard_range(split, shard), np.int64)
    rotations = spec.rotations(split, numbers)
    encoded: list[Any] = []
    for start in range(0, len(numbers), CHUNK):
        chunk = slice(start, start + CHUNK)
        images = spec.images(split, numbers[chunk], rotations[chunk])
        encoded.extend(map(encode_png, images) if manifest.encoding == "png" else images.transpose(0, 3, 1, 2))
        yield len(images)
    write_shard(root, manifest, task, encoded, rotations)


def _render_with(count: int, root: Path, spec: RenderSpec, manifest: Manifest, tasks: list[Task]) -> Iterator[int]:
    """Render shards with processes; yields numbers of new images."""
    with ProcessPoolExecutor(count, mp.get_context("spawn"), _begin_work) as pool:
        try:
            for done in as_completed([pool.submit(_work, root, spec, manifest, task) for task in tasks]):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_work() -> None:
    """A worker ends with Ctrl-C or its parent: a shard half done leaves nothing."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=lambda: (mp.parent_process().join(), os._exit(1)), daemon=True).start()  # type: ignore[union-attr]


def _work(root: Path, spec: RenderSpec, manifest: Manifest, task: Task) -> int:
    return sum(render_shard(root, spec, manifest, task))
