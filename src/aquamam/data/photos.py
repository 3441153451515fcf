"""Photograph-like renders: every byte of example i is a pure function of the objects, the seed, the split and i."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.spatial.transform import Rotation

from aquamam.data.random import words
from aquamam.data.renders import Pictures, RenderedDataset
from aquamam.errors import require
from aquamam.geometry.camera import NOMINAL
from aquamam.network.images import find_images, fit_to, read_image
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.photo import FARTHEST, photograph
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
        backgrounds: Path | None = None,
        mesh_error: float = 0.0,
        plain_share: float = 0.0,
        **options: Any,
    ):
        """backgrounds: a folder of the user's own pictures. mesh_error: how far the pictured objects may differ from
        their meshes, as a share of their size. plain_share: of examples that are plain renders instead. options: those
        of `RenderedDataset`.
        """
        require(0 <= plain_share < 1, f"the share of plain renders must lie in [0, 1), got {plain_share}.")
        rule = "the mesh error must be a share of the part's size from 0 to 0.3"
        require(0 <= mesh_error <= 0.3, f"{rule}, got {mesh_error}.")
        super().__init__(objects, RenderSettings(size=size), **options)
        self._drawn_meshes = [simplified(mesh) for mesh in self.spec.meshes]
        pictures = None if backgrounds is None else read_backgrounds(backgrounds, 2 * size)
        self._camera: dict[str, Any] = {"side": size, "pictures": pictures, "mesh_error": mesh_error}
        self.plain_share = plain_share
        self.about |= {"photographs": True, "mesh_error": mesh_error}
        if backgrounds is not None:
            self.about["backgrounds"] = str(backgrounds)
        if plain_share:
            self.about["plain_share"] = plain_share

    def _draw(self, numbers: Int64[np.ndarray, " n"], rotations: Float64[np.ndarray, "n 4"]) -> Pictures:
        matrices = Rotation.from_quat(rotations).as_matrix() if len(rotations) else np.zeros((0, 3, 3))
        keys, lot = words(self.spec.seed, f"{self.split}/photograph", numbers, 2).T
        plain = lot < np.uint64(self.plain_share * 2.0**63) * np.uint64(2)
        which, n = numbers % len(self.classes), len(numbers)
        images, windows, distances = np.empty((n, *self.image_size, 3), np.uint8), np.empty((n, 3)), np.empty(n)
        for k in np.unique(which):
            rows = np.flatnonzero((which == k) & ~plain)
            taken = photograph(self._drawn_meshes[k], matrices[rows], keys[rows], **self._camera)
            images[rows], windows[rows], distances[rows] = taken.images.transpose(0, 2, 3, 1), *taken[1:]
        if plain.any():
            images[plain] = self.spec.images(self.split, numbers[plain], rotations[plain])
            distances[plain] = self.spec.settings.distance
            radii = np.array([mesh.radius for mesh in self.spec.meshes])
            windows[plain] = centred_windows(radii[which[plain]], self.spec.settings)
        return Pictures(images, distances, windows)

    @property
    def _farthest(self) -> float:
        return FARTHEST * self.spec.meshes[0].radius


def centred_windows(radii: Float64[np.ndarray, " n"], settings: RenderSettings) -> Float64[np.ndarray, "n 3"]:
    """Windows (`rendering.photo`) of plain renders: the part's centre lies in the middle."""
    side = 2 * math.tan(math.radians(settings.fov_deg) / 2) * settings.distance
    return np.stack([0 * radii, 0 * radii, np.log(radii / side / NOMINAL)], -1)


def read_backgrounds(folder: Path, side: int) -> UInt8[np.ndarray, "n side side 3"]:
    """The pictures of a folder as squares."""
    squares = []
    for picture in map(read_image, find_images([folder])[:MOST_BACKGROUNDS]):
        short = min(picture.size)
        left, top = (picture.width - short) // 2, (picture.height - short) // 2
        square = picture.crop((left, top, left + short, top + short))
        squares.append(np.asarray(fit_to(square, (side, side))))
    return np.stack(squares)
