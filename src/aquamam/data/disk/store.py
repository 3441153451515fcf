"""Read the data sets that `aquamam render` writes: random access through memory maps, batches without a Python loop."""

from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from aquamam.data.base import Batch, RotationDataset, UnreadableExample, decode_image, fit_pixels
from aquamam.data.disk.layout import MANIFEST, Manifest, is_whole, shard_files
from aquamam.errors import InputError
from aquamam.geometry.symmetry import SymmetryGroup

OPEN_SHARDS = 256  # each holds a file descriptor, of which a process may have about a thousand


class StoredDataset(RotationDataset):
    """One split of a rendered data set; its single true rotation is the rendered one, `symmetry` tells the others."""

    kind = "aquamam"

    def __init__(self, root: Path | str, split: str = "train", *, size: int | None = None):
        self.root, self.split, self.size = Path(root), split, size
        self.manifest = manifest = Manifest.read(self.root)
        if split not in manifest.splits:
            raise InputError(f"{root} has the splits {', '.join(manifest.splits)}, not {split!r}; choose one of them.")
        shards = range(manifest.shards(split))
        whole = [s for s in shards if is_whole(self.root, split, s, manifest.encoding)]
        if len(whole) < len(shards):
            there = f"split {split} of {root} has {len(whole)} of its {len(shards)} shards"
            raise InputError(f"{there}; run the same `aquamam render` again to complete it.")
        self.classes = tuple(thing["name"] for thing in manifest.objects)
        told = {thing["name"]: thing["symmetry"] for thing in manifest.objects}
        self.symmetries = {name: None if g is None else SymmetryGroup.from_dict(g) for name, g in told.items()}
        self._rotations = np.concatenate([self._map(s, "rotations") for s in shards])
        if len(self._rotations) != manifest.splits[split]:
            there = f"split {split} of {root} must have {manifest.splits[split]} rotations, got {len(self._rotations)}"
            raise InputError(f"{there}; delete its folder and render again.")

    @staticmethod
    def recognises(root: Path) -> bool:
        return (root / MANIFEST).is_file()

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(Manifest.read(root).splits)

    def __len__(self) -> int:
        return len(self._rotations)

    def rotations(self, i: int) -> Float64[np.ndarray, "1 4"]:
        return self._rotations[i : i + 1]

    @property
    def image_size(self) -> tuple[int, int]:
        return (self.size, self.size) if self.size else self.manifest.image_shape

    def describe(self) -> dict[str, Any]:
        return asdict(self.manifest)

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        shard, place = divmod(i, self.manifest.shard_size)
        if self.manifest.encoding == "raw":
            return fit_pixels(self._map(shard, "images")[place].transpose(1, 2, 0), self.size)
        offset, length = self._map(shard, "offsets")[place]
        return decode_image(self._map(shard, "images")[offset : offset + length].tobytes(), self.name(i), self.size)

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        if self.manifest.encoding != "raw" or self.image_size != self.manifest.image_shape:
            return super().batch(indices, unreadable=unreadable)
        kept = np.fromiter(map(self._position, indices), np.int64)
        shard, place = np.divmod(kept, self.manifest.shard_size)
        images = np.empty((len(kept), 3, *self.image_size), np.uint8)
        for s in np.unique(shard):
            of_shard = np.flatnonzero(shard == s)
            try:
                images[of_shard] = self._map(int(s), "images")[place[of_shard]]
            except UnreadableExample:
                return super().batch(kept.tolist(), unreadable=unreadable)  # one by one, to know which are lost
        return self._collate(kept.tolist(), images.transpose(0, 2, 3, 1), list(self._rotations[kept, None]))

    def _map(self, shard: int, part: str) -> np.ndarray:
        path = shard_files(self.root, self.split, shard, self.manifest.encoding)[part]
        return open_map(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(OPEN_SHARDS)
def open_map(path: Path, modified: int) -> np.ndarray:
    """A file of a shard, mapped into memory; `modified` tells a file that was written again from the old one."""
    try:
        if path.suffix == ".tar":
            return np.memmap(path, np.uint8, "r")
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UnreadableExample(f"{path} is damaged; delete it and run the same `aquamam render` again.") from error
