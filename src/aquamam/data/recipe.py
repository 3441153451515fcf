"""What decides every byte of rendered examples: objects, settings and seed. Disk and on-the-fly data share it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from aquamam.data.random import haar, words
from aquamam.errors import InputError
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """Example i of a split shows meshes[i % len(meshes)] under a uniformly random rotation."""

    names: tuple[str, ...]  # the objects' names, which are the classes
    meshes: tuple[Mesh, ...]
    settings: RenderSettings
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.meshes or len(self.names) != len(self.meshes):
            raise InputError(f"a data set needs one name for each mesh, got {len(self.names)} and {len(self.meshes)}.")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"objects of a data set need different names, got {', '.join(self.names)}.")

    def rotations(self, split: str, numbers: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 4"]:
        """True rotations as canonical xyzw quaternions."""
        return haar(self.seed, f"{split}/rotation", numbers)

    def images(
        self, split: str, numbers: Int64[np.ndarray, " n"], rotations: Float64[np.ndarray, "n 4"]
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """Pictures of the examples; `rotations` are theirs."""
        out = np.empty((len(numbers), *self.settings.shape, 3), np.uint8)
        backgrounds = None
        if self.settings.background == "random":
            backgrounds = words(self.seed, f"{split}/background", numbers, 3).astype(np.uint8)
        for k, mesh in enumerate(self.meshes):
            shown = slice(None) if len(self.meshes) == 1 else np.flatnonzero(numbers % len(self.meshes) == k)
            out[shown] = render(
                mesh,
                rotations[shown],
                self.settings,
                backgrounds=None if backgrounds is None else backgrounds[shown],
            )
        return out
