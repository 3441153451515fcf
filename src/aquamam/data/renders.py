"""Plain renders on the fly, as `aquamam render` writes them: every byte of example i is a pure function of the
objects, the settings, the seed, the split and i."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
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

Numbers = Int64[np.ndarray, " n"]  # of examples
Quaternions = Float64[np.ndarray, "n 4"]


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
        self._told = {} if symmetries is None else {"symmetries": {name: _told(g) for name, g in symmetries.items()}}
        found = {t.name: Lookalikes.of(mesh_of(t), shape=getattr(t, "shape", None)) for t in things if lookalikes}
        self.lookalikes = {name: known for name, known in found.items() if known is not None}

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("an endless data set has no length; give length= to make it finite.")
        return self.length

    def rotations(self, i: int) -> Float64[np.ndarray, "equivalents 4"]:
        numbers = np.array([i], np.int64)
        return self._listed(numbers, self._drawn(numbers), self.spec.settings.distance)[0]

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return np.ascontiguousarray(self.batch([i]).images[0].permute(1, 2, 0).numpy())

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        numbers = np.fromiter(map(self._position, indices), np.int64)
        drawn = self._drawn(numbers)
        images = self.spec.images(self.split, numbers, drawn)
        return self._collate(numbers.tolist(), images, self._listed(numbers, drawn, self.spec.settings.distance))

    def _drawn(self, numbers: Numbers) -> Quaternions:
        return self.spec.rotations(self.split, numbers)

    def _listed(
        self,
        numbers: Int64[np.ndarray, " n"],
        drawn: Float64[np.ndarray, "n 4"],
        distances: float | Float64[np.ndarray, " n"],
    ) -> list[Float64[np.ndarray, "_ 4"]]:
        """All rotations that each example lists, the one in the picture first, for cameras so far away."""
        listed, distances = list(drawn[:, None]), np.broadcast_to(distances, len(drawn))
        labels = np.array([self.label(i) for i in numbers.tolist()])
        for name, known in self.lookalikes.items():
            rows = np.flatnonzero(labels == name)
            for row, equivalents in zip(rows, known.equivalents(drawn[rows], distances[rows])):
                listed[row] = equivalents
        return listed

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

    def describe(self) -> dict[str, Any]:
        spec = self.spec
        objects = [{"name": name, "mesh": mesh.hash} for name, mesh in zip(spec.names, spec.meshes)]
        about = {"objects": objects, "settings": spec.settings.to_dict(), "seed": spec.seed, "split": self.split}
        return about | self._told | ({"lookalikes": True} if self.lookalikes else {})


def _told(group: SymmetryGroup | None) -> dict[str, Any] | None:
    """A group as it is after a journey through a file."""

    def rounded(value: Any) -> Any:
        return [rounded(v) for v in value] if isinstance(value, list) else value and round(value, 9)

    return None if group is None else {name: rounded(value) for name, value in group.to_dict().items()}
