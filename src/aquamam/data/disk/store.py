"""Read the data sets that `aquamam render` writes, by random access through memory maps."""

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float64, UInt8

from aquamam.data.base import DiskDataset, UnreadableExample, decode_image, fit_pixels
from aquamam.data.disk.layout import MANIFEST, Manifest, is_whole
from aquamam.errors import require
from aquamam.geometry.symmetry import SymmetryGroup

OPEN_SHARDS = 256  # each holds a file descriptor, of which a process may have about a thousand


class StoredDataset(DiskDataset):
    """One split of a rendered data set; its single true rotation is the rendered one, `symmetry` tells the others."""

    kind = "aquamam"
    marks = (MANIFEST,)

    def read(self) -> None:
        self.manifest = manifest = Manifest.read(self.root)
        self.about = asdict(manifest)
        self._files = [manifest.files(self.root, self.split, shard) for shard in range(manifest.shards(self.split))]
        whole, there = sum(map(is_whole, self._files)), f"split {self.split} of {self.root}"
        came = f"{there} has {whole} of its {len(self._files)} shards"
        require(whole == len(self._files), f"{came}; run the same `aquamam render` again to complete it.")
        self.classes = tuple(thing["name"] for thing in manifest.objects)
        told = {thing["name"]: thing["symmetry"] for thing in manifest.objects}
        self.symmetries = {name: None if g is None else SymmetryGroup.from_dict(g) for name, g in told.items()}
        self._rotations = np.concatenate([open_map(files["rotations"]) for files in self._files])
        count = manifest.splits[self.split]
        came = f"{there} must have {count} rotations, got {len(self)}"
        require(len(self) == count, f"{came}; delete its folder and render again.")

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

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        shard, place = divmod(i, self.manifest.shard_size)
        images = open_map(self._files[shard]["images"])
        if self.manifest.encoding == "raw":
            return fit_pixels(images[place].transpose(1, 2, 0), self.size)
        offset, length = open_map(self._files[shard]["offsets"])[place]
        return decode_image(images[offset : offset + length].tobytes(), self.name(i), self.size)


def open_map(path: Path) -> np.ndarray:
    """A file of a shard, mapped into memory."""
    try:
        return _mapped(path, path.stat().st_mtime_ns)
    except (ValueError, EOFError, OSError) as error:
        raise UnreadableExample(f"{path} is damaged; delete it and run the same `aquamam render` again.") from error


@lru_cache(OPEN_SHARDS)
def _mapped(path: Path, modified: int) -> np.ndarray:
    """`modified` tells a file that was written again from the old one."""
    return np.memmap(path, np.uint8, "r") if path.suffix == ".tar" else np.load(path, mmap_mode="r", allow_pickle=False)
