"""Renders of one part as a camera might see it: lights, backgrounds, place, size, blur, noise and occluders are drawn anew for each.

What is drawn belongs to the example, not to the training, so that held-out and calibration images are drawn like training images are.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.spatial.transform import Rotation

from aquamam.data.augment import AugmentSettings, augment, chosen
from aquamam.data.base import Batch, canonical
from aquamam.data.random import uniforms, words
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.geometry.symmetry import SymmetryGroup


@dataclass(frozen=True, kw_only=True)
class Variation(AugmentSettings):
    """How far examples differ from a plain render; 0 leaves a change out. The image is never turned: rotations are uniform already."""

    called = "a variation"

    focus: float = 0.0  # share of examples seen nearly along an axis of the object, where views tend to be ambiguous
    lights: float = 0.0  # 0: the settings' light; 1: from anywhere on the viewer's side

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.turn_deg:
            raise InputError(
                f"a variation turns no images, since rotations are uniform already; got turn_deg {self.turn_deg}."
            )
        for name in ("focus", "lights"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} of a variation must lie in 0 ... 1, got {getattr(self, name)}.")


PLAIN = Variation()
# As far as a crop around the part in an ordinary photograph goes; half of the images have an occluder.
CAMERA = Variation(
    lights=1.0, shift=0.04, scale=0.08, brightness=0.12, contrast=0.3, colour=0.15, blur=0.012, noise=0.03,
    background=0.9, occluders=1, occluder_size=0.16,
)  # fmt: skip
# For models that are judged on plain renders and must not break on others.
ROBUST = Variation(
    share=0.25, focus=0.15, lights=1.0, shift=0.03, scale=0.06, brightness=0.15, contrast=0.3, colour=0.15, blur=0.012, noise=0.03,
    background=0.4,
)  # fmt: skip
VARIATIONS = {"none": PLAIN, "robust": ROBUST, "camera": CAMERA}
VIEWER = np.array([0.0, 0.0, 1.0])
AXES = Rotation.create_group("O")  # each of the six half-axes towards the camera, in four ways
FOCUS_DEG = 14.0  # how far off an axis counts as along it


class VariedDataset(RenderedDataset):
    """Example i is a pure function of (mesh, settings, variation, seed, split, i); `symmetry` is the mesh's group, where it has one."""

    kind = "varied"

    def __init__(
        self,
        mesh: Mesh,
        settings: RenderSettings,
        variation: Variation = PLAIN,
        *,
        symmetry: SymmetryGroup | None = None,
        seed: int = 0,
        split: str = "train",
        length: int | None = None,
        lookalikes: bool = False,
    ):
        super().__init__(mesh, settings, seed=seed, split=split, length=length, lookalikes=lookalikes)
        if settings.background == "random":
            raise InputError("varied renders need a plain background to replace, got 'random'; give a colour.")
        self.variation, self.group = variation, symmetry
        # another split's example of the same number differs by other amounts
        self._key = int(words(seed, f"{split}/variation", np.zeros(1, np.int64), 1)[0, 0] >> np.uint64(1))

    def _drawn(self, numbers: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 4"]:
        """Uniform, but for a share of views along the axes.

        That share is uniform in the turn about the line of sight and about the axis that faces the camera, so rotations that give one
        picture stay equally probable, and posteriors are those of uniform rotations.
        """
        q = self.recipe.rotations(self.split, numbers)
        if self.variation.focus == 0:
            return q
        u = uniforms(self.recipe.seed, f"{self.split}/focus", numbers, 5)
        tilt = np.arccos(1 - u[:, 1] * (1 - np.cos(np.radians(FOCUS_DEG))))  # uniform in the cap
        azimuth = 2 * np.pi * u[:, 2]
        turn = Rotation.from_rotvec(2 * np.pi * u[:, 3:4] * VIEWER)
        lean = Rotation.from_rotvec(tilt[:, None] * np.stack([np.cos(azimuth), np.sin(azimuth), 0 * azimuth], -1))
        facing = AXES[np.minimum((u[:, 4] * len(AXES)).astype(int), len(AXES) - 1)]
        along = canonical((turn * lean * facing).as_quat())
        return np.where((u[:, 0] < self.variation.focus)[:, None], along, q)

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return self.group

    @property
    def background(self) -> tuple[int, int, int] | None:
        return super().background if self.variation.background == 0 else None

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return self.batch([i]).images[0].permute(1, 2, 0).contiguous().numpy()

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        numbers = np.fromiter(map(self._position, indices), np.int64)
        drawn = self._drawn(numbers)
        images = render(self.recipe.meshes[0], drawn, self.recipe.settings, lights=self._lights(numbers))
        plain = self._batch(numbers, drawn, images)
        if self.variation == PLAIN:
            return plain
        colour = super().background
        return augment(plain, self.variation, seed=self._key, positions=numbers, background=colour)

    def _lights(self, numbers: np.ndarray) -> Float64[np.ndarray, "n 3"]:
        light = np.asarray(self.recipe.settings.light, float)
        light = np.broadcast_to(light / np.linalg.norm(light), (len(numbers), 3))
        if self.variation.lights == 0:
            return light
        u = uniforms(self.recipe.seed, f"{self.split}/light", numbers, 2)
        z, turn = 2 * u[:, 0] - 1, 2 * np.pi * u[:, 1]
        anywhere = np.stack([np.sqrt(1 - z * z) * np.cos(turn), np.sqrt(1 - z * z) * np.sin(turn), z], -1)
        drawn = anywhere + 1.1 * VIEWER  # what shines from behind would leave the part black
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        amounts = self.variation.lights * chosen(self.variation, seed=self._key, positions=numbers)[:, None]
        return (1 - amounts) * light + amounts * drawn

    def describe(self) -> dict[str, Any]:
        group = None
        if self.group is not None:  # rounded: it must be the same after a journey through a file
            group = {k: _rounded(v) for k, v in self.group.to_dict().items()}
        return {**super().describe(), "variation": asdict(self.variation), "symmetry": group}

    @classmethod
    def again(cls, mesh: Mesh, data: dict[str, Any], *, seed: int, split: str, length: int) -> "VariedDataset":
        """Fresh examples like those that `describe` told of."""
        settings = RenderSettings.from_dict(data["settings"])
        group = data.get("symmetry")
        return cls(
            replace(mesh, name=str(data["objects"][0]["name"])),
            settings,
            Variation.from_dict(data["variation"]),
            symmetry=None if group is None else SymmetryGroup.from_dict(group),
            seed=seed,
            split=split,
            length=length,
            lookalikes=data.get("lookalikes", False),
        )


def _rounded(value: Any) -> Any:
    return [_rounded(v) for v in value] if isinstance(value, list) else round(value, 9) if value is not None else None
