"""On-the-fly data: rendered while training, for when disk is scarcer than cores."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, UInt8

from aquamam.datasets.base import Batch, RotationDataset
from aquamam.datasets.layout import plain_colour
from aquamam.datasets.recipe import Recipe
from aquamam.errors import InputError
from aquamam.meshes import Mesh
from aquamam.render import RenderSettings
from aquamam.solids import Solid
from aquamam.symmetry import SymmetryGroup


class RenderedDataset(RotationDataset):
    """An endless data set: example i is a pure function of (objects, settings, seed, split, i).

    It gives exactly what `aquamam render` with the same arguments would have written, and then more. With `length` it
    is finite, for validation. Workers and ranks share it by taking different indices (`Stream` does).
    """

    kind = "rendered"

    def __init__(
        self,
        objects: Solid | Mesh | Sequence[Solid | Mesh],
        settings: RenderSettings | None = None,
        *,
        seed: int = 0,
        split: str = "train",
        length: int | None = None,
    ):
        things = [objects] if isinstance(objects, (Solid, Mesh)) else list(objects)
        if length is not None and length < 1:
            raise InputError(f"a data set's length must be at least 1, or None for endless, got {length}.")
        self.recipe = Recipe(
            names=tuple(thing.name for thing in things),
            meshes=tuple(thing.mesh if isinstance(thing, Solid) else thing for thing in things),
            settings=settings or RenderSettings(),
            seed=seed,
        )
        self.split, self.length = split, length
        self.endless = length is None
        self.classes = self.recipe.names
        self._symmetries = {thing.name: thing.symmetry if isinstance(thing, Solid) else None for thing in things}

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("an endless data set has no length; give length= to make it finite.")
        return self.length

    def label(self, i: int) -> str:
        return self.classes[i % len(self.classes)]

    def name(self, i: int) -> str:
        return f"{self.split}/{i}"

    def rotations(self, i: int) -> Float64[np.ndarray, "1 4"]:
        return self.recipe.rotations(self.split, np.array([i]))

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return self.recipe.images(self.split, np.array([i]), self.rotations(i))[0]

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return self._symmetries[label]

    @property
    def image_size(self) -> tuple[int, int]:
        return self.recipe.settings.shape

    @property
    def background(self) -> tuple[int, int, int] | None:
        return plain_colour(self.recipe.settings.to_dict())

    def describe(self) -> dict[str, Any]:
        recipe = self.recipe
        objects = [{"name": name, "mesh": mesh.hash} for name, mesh in zip(recipe.names, recipe.meshes)]
        return {"objects": objects, "settings": recipe.settings.to_dict(), "seed": recipe.seed, "split": self.split}

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        numbers = np.fromiter(map(self._position, indices), np.int64)
        rotations = self.recipe.rotations(self.split, numbers)
        images = self.recipe.images(self.split, numbers, rotations)
        return Batch(
            images=torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))),
            rotations=torch.from_numpy(rotations[:, None]),
            counts=torch.ones(len(numbers), dtype=torch.int64),
            labels=tuple(map(self.label, numbers.tolist())),
            indices=tuple(numbers.tolist()),
        )
