"""On-the-fly data: rendered while training, for when disk is scarcer than cores."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8

from aquamam.posterior.equal_views import ViewClasses
from aquamam.data.base import Batch, RotationDataset, pad_rotations
from aquamam.data.disk.layout import plain_colour
from aquamam.data.recipe import Recipe
from aquamam.errors import InputError
from aquamam.shape.lookalikes import Lookalikes
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import Solid
from aquamam.geometry.symmetry import SymmetryGroup


class RenderedDataset(RotationDataset):
    """An endless data set: example i is a pure function of (objects, settings, seed, split, i).

    It gives exactly what `aquamam render` with the same arguments would have written, and then more. With `length` it
    is finite, for validation. Workers and ranks share it by taking different indices (`Stream` does). With `lookalikes`
    an example lists all rotations that give its picture, for objects whose paint may be out of sight.
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
        lookalikes: bool = False,
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
        self.lookalikes: dict[str, Lookalikes] = {}
        for thing, mesh in zip(things, self.recipe.meshes) if lookalikes else ():
            found = Lookalikes.of(mesh, shape=thing.shape if isinstance(thing, Solid) else None)
            if found is not None:
                self.lookalikes[thing.name] = found

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("an endless data set has no length; give length= to make it finite.")
        return self.length

    def label(self, i: int) -> str:
        return self.classes[i % len(self.classes)]

    def name(self, i: int) -> str:
        return f"{self.split}/{i}"

    def rotations(self, i: int) -> Float64[np.ndarray, "equivalents 4"]:
        numbers = np.array([i], np.int64)
        return self._truths(numbers, self._drawn(numbers))[0]

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        numbers = np.array([i], np.int64)
        return self.recipe.images(self.split, numbers, self._drawn(numbers))[0]

    def _drawn(self, numbers: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 4"]:
        """The rotations in the pictures."""
        return self.recipe.rotations(self.split, numbers)

    def _truths(
        self, numbers: Int64[np.ndarray, " n"], drawn: Float64[np.ndarray, "n 4"]
    ) -> list[Float64[np.ndarray, "_ 4"]]:
        """All rotations that each example lists, the one in the picture first."""
        truths = list(drawn[:, None])
        labels = np.array([self.label(int(i)) for i in numbers])
        for name, known in self.lookalikes.items():
            rows = np.flatnonzero(labels == name)
            for row, equivalents in zip(rows, known.equivalents(drawn[rows], self.recipe.settings)):
                truths[row] = equivalents
        return truths

    @property
    def view_classes(self) -> ViewClasses | None:
        """What a posterior of the one object here must know to give rotations of one picture equal shares, if there is anything."""
        known = list(self.lookalikes.values())
        return known[0].view_classes(self.recipe.settings) if len(self.classes) == 1 and known else None

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
        about = {"objects": objects, "settings": recipe.settings.to_dict(), "seed": recipe.seed, "split": self.split}
        return about | ({"lookalikes": True} if self.lookalikes else {})

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        numbers = np.fromiter(map(self._position, indices), np.int64)
        drawn = self._drawn(numbers)
        return self._batch(numbers, drawn, self.recipe.images(self.split, numbers, drawn))

    def _batch(
        self, numbers: Int64[np.ndarray, " n"], drawn: Float64[np.ndarray, "n 4"], images: UInt8[np.ndarray, "n h w 3"]
    ) -> Batch:
        rotations, counts = pad_rotations(self._truths(numbers, drawn))
        return Batch(
            images=torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))),
            rotations=torch.from_numpy(rotations),
            counts=torch.from_numpy(counts),
            labels=tuple(map(self.label, numbers.tolist())),
            indices=tuple(numbers.tolist()),
        )
