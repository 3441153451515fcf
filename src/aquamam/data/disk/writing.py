"""Render a data set to disk with many processes; killed and started again, it goes on and ends with the same bytes."""

import errno
import multiprocessing as mp
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from aquamam.data.disk.layout import Manifest, encode_png, is_whole, write_manifest, write_shard
from aquamam.data.random import haar, words
from aquamam.errors import InputError
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
        if not self.meshes or len(self.names) != len(self.meshes):
            raise InputError(f"a data set needs one name for each mesh, got {len(self.names)} and {len(self.meshes)}.")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"objects of a data set need different names, got {', '.join(self.names)}.")

    def rotations(self, split: str, numbers: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 4"]:
        """True rotations as canonical xyzw quaternions."""
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


CHUNK = 64  # images between two reports of progress
Report = Callable[[int], None]
Task = tuple[str, int]  # split and shard number


@dataclass(frozen=True, kw_only=True)
class Written:
    """How far a data set is: images of this run's share, of which `rendered` are new."""

    images: int
    rendered: int
    shards: int


def write_dataset(
    root: Path,
    spec: RenderSpec,
    manifest: Manifest,
    *,
    workers: int = 1,
    part: tuple[int, int] = (0, 1),
    progress: Callable[[int, int], Report] = lambda total, done: lambda images: None,
) -> Written:
    """Render every missing shard of part i of n; `progress(total, done)` gives what to call with new images."""
    i, n = part
    if not 0 <= i < n:
        raise InputError(f"part i of n needs 0 <= i < n, got {i}/{n}.")
    if workers < 1:
        raise InputError(f"rendering needs at least 1 worker, got {workers}.")
    write_manifest(root, manifest)
    everything = [(split, shard) for split in manifest.splits for shard in range(manifest.shards(split))]
    mine = everything[i::n]
    missing = [task for task in mine if not is_whole(root, *task, manifest.encoding)]
    size = {task: len(manifest.shard_range(*task)) for task in mine}
    total, left = sum(size.values()), sum(size[task] for task in missing)
    report = progress(total, total - left)
    try:
        if workers == 1 or len(missing) <= 1:
            for task in missing:
                render_shard(root, spec, manifest, task, report)
        else:
            _render_with(min(workers, len(missing)), root, spec, manifest, missing, report)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            done = sum(size[task] for task in mine if is_whole(root, *task, manifest.encoding))
            raise OSError(
                f"the disk of {root} is full after {done} of {total} images, all of them whole; "
                "make room and run the same command again to go on."
            ) from error
        raise
    return Written(images=total, rendered=left, shards=len(mine))


def render_shard(root: Path, spec: RenderSpec, manifest: Manifest, task: Task, report: Report) -> None:
    """Render and write one shard: a pure function of the spec, the split and the shard's number."""
    split, shard = task
    numbers = np.asarray(manifest.shard_range(split, shard), np.int64)
    rotations = spec.rotations(split, numbers)
    raw = manifest.encoding == "raw"
    pixels = np.empty((len(numbers), 3, *manifest.image_shape) if raw else 0, np.uint8)
    files: list[bytes] = []
    for start in range(0, len(numbers), CHUNK):
        chunk = slice(start, start + CHUNK)
        images = spec.images(split, numbers[chunk], rotations[chunk])
        if raw:
            pixels[chunk] = images.transpose(0, 3, 1, 2)
        else:
            files += [encode_png(image) for image in images]
        report(len(images))
    write_shard(root, manifest, split, shard, pixels if raw else files, rotations)


def _render_with(
    workers: int, root: Path, spec: RenderSpec, manifest: Manifest, tasks: list[Task], report: Report
) -> None:
    """Hand tasks to processes through pipes: when this process dies, the pipes break and theirs end too."""
    context = mp.get_context("spawn")
    pipes: dict[Any, Any] = {}  # our end of the pipe -> process
    todo = iter(tasks)
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, root, spec, manifest), daemon=True)
            process.start()
            theirs.close()
            pipes[ours] = process
            ours.send(next(todo))
        busy = set(pipes)
        while busy:
            ready: list[Any] = wait(list(busy))
            for pipe in ready:
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    pipes[pipe].join(5)
                    code = pipes[pipe].exitcode
                    raise OSError(
                        f"a rendering process ended (exit code {code}), perhaps for want of memory; "
                        "run the same command again with fewer workers to go on."
                    ) from None
                if isinstance(message, int):
                    report(message)
                elif isinstance(message, Exception):
                    raise message
                elif (task := next(todo, None)) is not None:
                    pipe.send(task)
                else:
                    pipe.send(None)
                    busy.discard(pipe)
        for process in pipes.values():
            process.join()
    finally:
        for pipe, process in pipes.items():
            pipe.close()
            process.terminate()  # a shard half done leaves a temporary file at most; the next run removes it
            process.join()


def _work(pipe: Connection, root: Path, spec: RenderSpec, manifest: Manifest) -> None:
    """A worker's life: render what the pipe names until it says None or breaks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    try:
        while (task := pipe.recv()) is not None:
            render_shard(root, spec, manifest, task, pipe.send)
            pipe.send("done")
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the parent is gone
    except Exception as error:
        try:
            pipe.send(error)
        except Exception:  # not every exception can be pickled
            pipe.send(RuntimeError(traceback.format_exc()))
