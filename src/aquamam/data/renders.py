"""Rendered examples: every byte of example i is a pure function of the objects, the settings, the seed, the split and
i.

`RenderedDataset` gives what `aquamam render` writes, on the fly. `VariedDataset` shows one object as a camera might
see it: lights, backgrounds, place, size, blur, noise and occluders are drawn anew for each example. What is drawn
belongs to the example, not to the training, so that held-out and calibration images are drawn like training images
are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.spatial.transform import Rotation

from aquamam.data.augment import AugmentSettings, augment, chosen
from aquamam.data.base import Batch, RotationDataset
from aquamam.data.disk.layout import plain_colour
from aquamam.data.disk.writing import RenderSpec
from aquamam.data.random import uniforms, words
from aquamam.errors import InputError
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.equal_views import ViewClasses
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
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
        seed: int = 0,
        split: str = "train",
        length: int | None = None,
        lookalikes: bool = False,
    ):
        things = [objects] if isinstance(objects, (Solid, Mesh)) else list(objects)
        if length is not None and length < 1:
            raise InputError(f"a data set's length must be at least 1, or None for endless, got {length}.")
        names, meshes = tuple(thing.name for thing in things), tuple(map(mesh_of, things))
        self.spec = RenderSpec(names=names, meshes=meshes, settings=settings or RenderSettings(), seed=seed)
        self.split, self.length, self.endless, self.classes = split, length, length is None, names
        self._symmetries: dict[str, SymmetryGroup | None] = {t.name: getattr(t, "symmetry", None) for t in things}
        found = {t.name: Lookalikes.of(mesh_of(t), shape=getattr(t, "shape", None)) for t in things if lookalikes}
        self.lookalikes = {name: known for name, known in found.items() if known is not None}

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
        return self._listed(numbers, self._drawn(numbers))[0]

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return np.ascontiguousarray(self.batch([i]).images[0].permute(1, 2, 0).numpy())

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        numbers = np.fromiter(map(self._position, indices), np.int64)
        drawn = self._drawn(numbers)
        return self._collate(numbers.tolist(), self._images(numbers, drawn), self._listed(numbers, drawn))

    def _drawn(self, numbers: Numbers) -> Quaternions:
        """The rotations in the pictures."""
        return self.spec.rotations(self.split, numbers)

    def _images(self, numbers: Numbers, drawn: Quaternions) -> UInt8[np.ndarray, "n h w 3"]:
        return self.spec.images(self.split, numbers, drawn)

    def _listed(self, numbers: Numbers, drawn: Quaternions) -> list[Float64[np.ndarray, "_ 4"]]:
        """All rotations that each example lists, the one in the picture first."""
        listed = list(drawn[:, None])
        labels = np.array([self.label(i) for i in numbers.tolist()])
        for name, known in self.lookalikes.items():
            rows = np.flatnonzero(labels == name)
            for row, equivalents in zip(rows, known.equivalents(drawn[rows], self.spec.settings)):
                listed[row] = equivalents
        return listed

    @property
    def view_classes(self) -> ViewClasses | None:
        """What a posterior of the one object here must know to give rotations of one picture equal shares."""
        known = list(self.lookalikes.values())
        return known[0].view_classes(self.spec.settings) if len(self.classes) == 1 and known else None

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return self._symmetries[label]

    @property
    def image_size(self) -> tuple[int, int]:
        return self.spec.settings.shape

    @property
    def background(self) -> tuple[int, int, int] | None:
        return plain_colour(self.spec.settings.to_dict())

    def describe(self) -> dict[str, Any]:
        spec = self.spec
        objects = [{"name": name, "mesh": mesh.hash} for name, mesh in zip(spec.names, spec.meshes)]
        about = {"objects": objects, "settings": spec.settings.to_dict(), "seed": spec.seed, "split": self.split}
        return about | ({"lookalikes": True} if self.lookalikes else {})


# --- as a camera might see it -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Variation(AugmentSettings):
    """How far examples differ from a plain render; 0 leaves a change out. Rotations are uniform already, so no image is
    rotated in its plane."""

    called = "a variation"

    focus: float = 0.0  # share of examples seen nearly along an axis of the object, where views tend to be ambiguous
    lights: float = 0.0  # 0: the settings' light; 1: from anywhere on the viewer's side

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.turn_deg:
            raise InputError(f"a variation rotates no images, as rotations are uniform; got turn_deg {self.turn_deg}.")
        for name in ("focus", "lights"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} of a variation must lie in 0 ... 1, got {getattr(self, name)}.")


PLAIN = Variation()
# For models that are judged on plain renders and must not break on others.
ROBUST = Variation(
    share=0.25,
    focus=0.15,
    lights=1.0,
    shift=0.03,
    scale=0.06,
    brightness=0.15,
    contrast=0.3,
    colour=0.15,
    blur=0.012,
    noise=0.03,
    background=0.4,
)
# As far as a crop around the part in an ordinary photograph goes; half of the images have an occluder.
CAMERA = replace(
    ROBUST,
    share=1.0,
    focus=0.0,
    shift=0.04,
    scale=0.08,
    brightness=0.12,
    background=0.9,
    occluders=1,
    occluder_size=0.16,
)
VARIATIONS = {"none": PLAIN, "robust": ROBUST, "camera": CAMERA}
VIEWER = np.array([0.0, 0.0, 1.0])
AXES = Rotation.create_group("O")  # each of the six half-axes towards the camera, in four ways
FOCUS_DEG = 14.0  # how far off an axis counts as along it


class VariedDataset(RenderedDataset):
    """Renders of one mesh under a variation; `symmetry` is the mesh's group, where it is known."""

    kind = "varied"

    def __init__(
        self,
        mesh: Mesh,
        settings: RenderSettings,
        variation: Variation = PLAIN,
        *,
        symmetry: SymmetryGroup | None = None,
        **options: Any,
    ):
        """options: seed, split, length and lookalikes of `RenderedDataset`."""
        super().__init__(mesh, settings, **options)
        if settings.background == "random":
            raise InputError("varied renders need a plain background to replace, got 'random'; give a colour.")
        self.variation, self._symmetries = variation, {mesh.name: symmetry}
        # another split's example of the same number differs by other amounts
        first = words(self.spec.seed, f"{self.split}/variation", np.zeros(1, np.int64), 1)[0, 0]
        self._key = int(first >> np.uint64(1))

    @classmethod
    def again(cls, mesh: Mesh, data: dict[str, Any], **options: Any) -> "VariedDataset":
        """Fresh examples, by their seed, split and length, like those that `describe` told of."""
        group = None if data.get("symmetry") is None else SymmetryGroup.from_dict(data["symmetry"])
        mesh, settings = replace(mesh, name=str(data["objects"][0]["name"])), RenderSettings.from_dict(data["settings"])
        variation, lookalikes = Variation.from_dict(data["variation"]), data.get("lookalikes", False)
        return cls(mesh, settings, variation, symmetry=group, lookalikes=lookalikes, **options)

    def describe(self) -> dict[str, Any]:
        group = self._symmetries[self.classes[0]]
        # rounded: it must be the same after a journey through a file
        told = None if group is None else {k: v and np.round(v, 9).tolist() for k, v in group.to_dict().items()}
        return {**super().describe(), "variation": asdict(self.variation), "symmetry": told}

    @property
    def background(self) -> tuple[int, int, int] | None:
        return super().background if self.variation.background == 0 else None

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        plain = super().batch(indices)
        if self.variation == PLAIN:
            return plain
        positions = np.array(plain.indices, np.int64)
        return augment(plain, self.variation, seed=self._key, positions=positions, background=super().background)

    def _images(self, numbers: Numbers, drawn: Quaternions) -> UInt8[np.ndarray, "n h w 3"]:
        return render(self.spec.meshes[0], drawn, self.spec.settings, lights=self._lights(numbers))

    def _drawn(self, numbers: Numbers) -> Quaternions:
        """Uniform, but for a share of views along the axes.

        That share is uniform in the rotation about the line of sight and about the axis that faces the camera, so
        rotations that give one picture stay equally probable, and posteriors are those of uniform rotations.
        """
        q = super()._drawn(numbers)
        if self.variation.focus == 0:
            return q
        u = uniforms(self.spec.seed, f"{self.split}/focus", numbers, 5)
        tilt = np.arccos(1 - u[:, 1] * (1 - np.cos(np.radians(FOCUS_DEG))))  # uniform in the cap
        azimuth = 2 * np.pi * u[:, 2]
        about_sight = Rotation.from_rotvec(2 * np.pi * u[:, 3:4] * VIEWER)
        lean = Rotation.from_rotvec(tilt[:, None] * np.stack([np.cos(azimuth), np.sin(azimuth), 0 * azimuth], -1))
        facing = AXES[np.minimum((u[:, 4] * len(AXES)).astype(int), len(AXES) - 1)]
        along = (about_sight * lean * facing).as_quat(canonical=True)
        return np.where((u[:, 0] < self.variation.focus)[:, None], along, q)

    def _lights(self, numbers: np.ndarray) -> Float64[np.ndarray, "n 3"]:
        light = np.asarray(self.spec.settings.light, float)
        light = np.broadcast_to(light / np.linalg.norm(light), (len(numbers), 3))
        if self.variation.lights == 0:
            return light
        u = uniforms(self.spec.seed, f"{self.split}/light", numbers, 2)
        z, turn = 2 * u[:, 0] - 1, 2 * np.pi * u[:, 1]
        anywhere = np.stack([np.sqrt(1 - z * z) * np.cos(turn), np.sqrt(1 - z * z) * np.sin(turn), z], -1)
        drawn = anywhere + 1.1 * VIEWER  # what shines from behind would leave the part black
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        amounts = self.variation.lights * chosen(self.variation, seed=self._key, positions=numbers)[:, None]
        return (1 - amounts) * light + amounts * drawn
