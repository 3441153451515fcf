"""SYMSOL (Murphy et al. 2021): rendered solids with every equivalent rotation written out."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64

from aquamam.data.base import ListedDataset, choose
from aquamam.errors import InputError
from aquamam.geometry.rotations import as_rotation_matrix, inverse, matrix_to_quat, multiply, rotate
from aquamam.geometry.symmetry import SymmetryGroup

SHAPES = ("tet", "cube", "icosa", "cone", "cyl", "tetX", "cylO", "sphereX")
CONTINUOUS = 360  # this many equivalents or more sample a continuous axis


class SymsolDataset(ListedDataset):
    """`SPLIT/images/SHAPE_INDEX.png` and `SPLIT/rotations.npz` of (images, equivalents, 3, 3); entry 0 was rendered.

    Rotations are taken as they are stored. Symmetries are read off the equivalents, so they are in the data's frame.
    """

    kind = "symsol"
    marks = ("*/rotations.npz",)

    def read(self, *, shapes: Sequence[str] | None = None) -> None:
        path = self.root / self.split / "rotations.npz"
        try:
            with np.load(path, allow_pickle=False) as archive:
                there = set(archive.files)
                known = (*(s for s in SHAPES if s in there), *sorted(there - {*SHAPES}))
                self._matrices = {shape: archive[shape] for shape in shapes or known if shape in there}
        except (zipfile.BadZipFile, ValueError, OSError) as error:
            raise InputError(f"{path} must be an .npz file, got: {error}; download it again.") from error
        choose("shapes", shapes or (), sorted(there), path)
        self.classes = tuple(self._matrices)
        for shape, R in self._matrices.items():
            if R.ndim != 4 or R.shape[2:] != (3, 3) or R.shape[1] < 1:
                raise InputError(f"{shape} of {path} must be (images, equivalents, 3, 3), got {R.shape}.")
        self._places = [(shape, k) for shape, R in self._matrices.items() for k in range(len(R))]
        self.names = [f"{self.split}/images/{shape}_{k:05d}.png" for shape, k in self._places]
        self.labels = [shape for shape, _ in self._places]
        equivalents = {shape: int(R.shape[1]) for shape, R in self._matrices.items()}
        self.about = {"equivalents": equivalents, "camera": "as stored"}
        self.symmetries = {
            shape: group_of(torch.from_numpy(self.rotations(self.labels.index(shape)))) for shape in self.classes
        }

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted(path.parent.name for path in root.glob("*/rotations.npz")))

    def rotations(self, i: int) -> Float64[np.ndarray, "equivalents 4"]:
        shape, number = self._places[i]
        R = torch.from_numpy(np.array(self._matrices[shape][number], np.float64))
        return matrix_to_quat(as_rotation_matrix(R, f"rotations of {self.name(i)}")).numpy()


def group_of(equivalents: Float64[torch.Tensor, "equivalents 4"]) -> SymmetryGroup:
    """The group of an object from all rotations R g (xyzw) that look the same: g = R^-1 (R g)."""
    elements = multiply(inverse(equivalents[:1]), equivalents)
    if len(elements) < CONTINUOUS:
        return SymmetryGroup.generated(elements)
    least = elements[elements[:, 3].abs().argsort(descending=True)[1]]  # the smallest angle: flips are half turns
    axis = least[:3] / least[:3].norm()
    flip = bool((rotate(elements, axis) @ axis < 0).any())
    return SymmetryGroup.revolution(axis, flip=flip)
