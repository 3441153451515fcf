"""Plain renders on the fly, as `aquamam render` writes them: every byte of example i is a pure function of the
objects, the settings, the seed, the split and i."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8

from aquamam.data.base import Batch, RotationDataset
from aquamam.data.disk.writing import RenderSpec
from aquamam.errors import require
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.calibration import ViewClasses
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import Solid, mesh_of
from aquamam.shape.lookalikes import Lookalikes


class Pictures(NamedTuple):
    """Pictures of objects, the distances of the cameras, and perhaps the windows (`rendering.photo`)."""

    images: UInt8[np.ndarray, "n h w 3"]
    distances: Float64[np.ndarray, " n"]
    windows: Float64[np.ndarray, "n 3"] | None = None


class RenderedDataset(RotationDataset):
    """Examples rendered when they are asked for: endless, or finite with `length`, for validation.

    Workers and ranks share it by taking different indices (`Stream` does). With `lookalikes` an example lists all
    rotations that give its picture, for objects whose paint may be out of sight.
    """

    kind = "rendered"

    def __init__(
        self,
        objects: Solid | Mesh | Sequence[Solid | Mesh],
        settings: RenderSettings | None = None,
        *,
        symmetries: Mapping[str, SymmetryGroup | None] | None = None,
        seed: int = 0,
        split: str = "train",
        length: int | None = None,
        lookalikes: bool = False,
    ):
        """symmetries: of objects that do not know their own."""
        things = [objects] if isinstance(objects, (Solid, Mesh)) else list(objects)
        rule = "a data set's length must be at least 1, or None for endless"
        require(length is None or length > 0, f"{rule}, got {length}.")
        names, meshes = tuple(thing.name for thing in things), tuple(map(mesh_of, things))
        self.spec = RenderSpec(names=names, meshes=meshes, settings=settings or RenderSettings(), seed=seed)
        self.split, self.length, self.endless, self.classes = split, length, length is None, names
        self.symmetries = {t.name: getattr(t, "symmetry", None) for t in things} | dict(symmetries or {})
        found = [Lookalikes.of(mesh_of(t), shape=getattr(t, "shape", None)) if lookalikes else None for t in things]
        self.lookalikes = {k: known for k, known in enumerate(found) if known is not None}  # by place among the objects
        shown = [{"name": name, "mesh": mesh.hash} for name, mesh in zip(names, meshes)]
        drawn = {"settings": self.spec.settings.to_dict(), "seed": seed, "split": split}
        self.about: dict[str, Any] = {"objects": shown, **drawn}
        if symmetries is not None:
            self.about["symmetries"] = {name: rounded(group) for name, group in symmetries.items()}
        if self.lookalikes:
            self.about["lookalikes"] = True

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("an endless data set has no length; give length= to make it finite.")
        return self.length

    def rotations(self, i: int) -> Float64[np.ndarray, "equivalents 4"]:
        batch = self.batch([i])
        return batch.rotations[0, : batch.counts[0]].numpy()

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return np.ascontiguousarray(self.batch([i]).images[0].permute(1, 2, 0).numpy())

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        numbers = np.fromiter(map(self._position, indices), np.int64)
        drawn = self.spec.rotations(self.split, numbers)
        shown, listed = self._draw(numbers, drawn), list(drawn[:, None])
        for k, known in self.lookalikes.items():
            rows = np.flatnonzero(numbers % len(self.classes) == k)
            for row, equivalents in zip(rows, known.equivalents(drawn[rows], shown.distances[rows])):
                listed[row] = equivalents
        batch = self._collate(numbers.tolist(), shown.images, listed)
        return batch if shown.windows is None else replace(batch, windows=torch.from_numpy(shown.windows).float())

    def _draw(self, numbers: Int64[np.ndarray, " n"], rotations: Float64[np.ndarray, "n 4"]) -> Pictures:
        images = self.spec.images(self.split, numbers, rotations)
        return Pictures(images, np.full(len(numbers), self.spec.settings.distance))

    @property
    def view_classes(self) -> ViewClasses | None:
        """What a posterior of the one object here must know to give rotations of one picture equal shares."""
        known = list(self.lookalikes.values())
        return known[0].view_classes(self._farthest) if len(self.classes) == 1 and known else None

    @property
    def _farthest(self) -> float:
        """The largest distance of a camera."""
        return self.spec.settings.distance

    @property
    def image_size(self) -> tuple[int, int]:
        return self.spec.settings.shape


def rounded(group: SymmetryGroup | None) -> dict[str, Any] | None:
    """A group as plain values that a journey through a file does not change."""
    told = {} if group is None else group.to_dict()
    return {name: value and np.round(value, 9).tolist() for name, value in told.items()} or None
