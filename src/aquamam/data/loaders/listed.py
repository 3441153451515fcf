"""What all loaders share: a data set is a list of images with classes and rotations, in a split of a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from aquamam.data.base import Box, RotationDataset, decode_image
from aquamam.errors import InputError


class ListedDataset(RotationDataset):
    """A subclass says how its layout is recognised and which splits it has, and lists names, labels and rotations."""

    marks: tuple[str, ...]  # patterns of paths, all of which match where this layout lies
    names: Sequence[str]  # paths of the images below the root, unless `source` says otherwise
    labels: Sequence[str]
    quaternions: Sequence[Float64[np.ndarray, "equivalents 4"]] | Float64[np.ndarray, "n equivalents 4"]
    boxes: Sequence[Box] | None = None  # where the object is; the images are crops around it
    margin: float = 1.0  # of the crops
    about: Mapping[str, Any]  # how the layout writes rotations

    def __init__(self, root: Path | str, split: str, size: int | None):
        self.root, self.split, self.size = Path(root), split, size
        if split not in (there := self.splits(self.root)):
            raise InputError(f"{root} has the splits {', '.join(there)}, not {split!r}; choose one.")

    @classmethod
    def recognises(cls, root: Path) -> bool:
        return all(any(root.glob(mark)) for mark in cls.marks)

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        raise NotImplementedError

    def source(self, i: int) -> Path | bytes:
        """The file of image i, or its bytes."""
        return self.root / self.names[i]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def label(self, i: int) -> str:
        return self.labels[i]

    def rotations(self, i: int) -> Float64[np.ndarray, "equivalents 4"]:
        return self.quaternions[i]

    def describe(self) -> dict[str, Any]:
        return dict(self.about)

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        box = None if self.boxes is None else self.boxes[i]
        return decode_image(self.source(i), self.names[i], self.size, box=box, margin=self.margin)


def choose(what: str, wanted: Sequence, there: Sequence, where: object) -> None:
    """Raise InputError unless all that is wanted is there."""
    if unknown := [one for one in wanted if one not in there]:
        listed = ", ".join(map(str, there))
        raise InputError(f"{where} has the {what} {listed}, not {unknown[0]!r}; choose among them.")
