"""Photograph-like renders: every byte of example i is a pure function of the objects, the seed, the split and i."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from scipy.spatial.transform import Rotation

from aquamam.data.base import Batch
from aquamam.data.random import words
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.images import find_images, fit_to, read_image
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.photo import photograph
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.simplify import simplified
from aquamam.rendering.solids import Solid

MOST_BACKGROUNDS = 2_000  # pictures of a folder that are kept in memory


class PhotoDataset(RenderedDataset):
    """Objects as cameras see them and detectors cut them (`rendering.photo`), each with its window in the crop."""

    kind = "photographs"

    def __init__(
        self,
        objects: Solid | Mesh | Sequence[Solid | Mesh],
        size: int = 64,
        *,
        symmetries: dict[str, SymmetryGroup] | None = None,
        backgrounds: Path | None = None,
        seed: int = 0,
        split: str = "train",
        length: int | None = None,
    ):
        """symmetries: of objects that do not know their own. backgrounds: a folder of the user's own pictures."""
        super().__init__(objects, RenderSettings(size=size), seed=seed, split=split, length=length)
        self._symmetries |= symmetries or {}
        self._drawn_meshes = [simplified(mesh) for mesh in self.spec.meshes]
        self._pictures = None if backgrounds is None else read_backgrounds(backgrounds, 2 * size)
        self._folder = backgrounds

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        numbers = np.fromiter(map(self._position, indices), np.int64)
        drawn = self._drawn(numbers)
        matrices = Rotation.from_quat(drawn).as_matrix() if len(drawn) else np.zeros((0, 3, 3))
        keys = words(self.spec.seed, f"{self.split}/photograph", numbers, 1)[:, 0]
        size, which = self.image_size[0], numbers % len(self.classes)
        images, windows = np.empty((len(numbers), 3, size, size), np.uint8), np.empty((len(numbers), 3))
        for k in np.unique(which):
            rows = np.flatnonzero(which == k)
            taken = photograph(self._drawn_meshes[k], matrices[rows], keys[rows], side=size, pictures=self._pictures)
            images[rows], windows[rows] = taken.images, taken.windows
        whole = self._collate(numbers.tolist(), images.transpose(0, 2, 3, 1), list(drawn[:, None]))
        return replace(whole, windows=torch.from_numpy(windows).float())

    @property
    def background(self) -> None:
        return None

    def describe(self) -> dict[str, Any]:
        told = {name: group.to_dict() for name, group in self._symmetries.items() if group is not None}
        about = {"photographs": True, "symmetries": told}
        return {**super().describe(), **about} | ({"backgrounds": str(self._folder)} if self._folder else {})


def read_backgrounds(folder: Path, side: int) -> UInt8[np.ndarray, "n side side 3"]:
    """The pictures of a folder as squares."""
    files = find_images([folder])[:MOST_BACKGROUNDS]
    squares = []
    for file in files:
        picture = read_image(file)
        short = min(picture.size)
        left, top = (picture.width - short) // 2, (picture.height - short) // 2
        square = picture.crop((left, top, left + short, top + short))
        squares.append(np.asarray(fit_to(square, (side, side))))
    if not squares:
        raise InputError(f"a folder of backgrounds must hold images, and {folder} holds none.")
    return np.stack(squares)
