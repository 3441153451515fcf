"""How visible a difference is: renders of an object and of the rotated object, compared pixel by pixel.

A surface that moves by less than a pixel changes what its outline and the edges of its paint look like; nobody sees
that. So a pixel differs by as much as its colour lies outside the range of the 3 x 3 pixels at the same place of the
other image.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.ndimage import maximum_filter, minimum_filter
from scipy.spatial.transform import Rotation

from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.shape.surface import directions, looking_from

VIEWS = looking_from(directions(8), 1.0 + np.arange(8) * 2.4)
LEVELS = 25  # of 255: what a pixel may change without looking another


class Difference(NamedTuple):
    """How different a rotated object looks, in the view that shows it most."""

    share: float  # of the object's pixels that change by more than LEVELS
    largest: float  # change of a pixel, in levels


class RenderComparison:
    """An object about its origin, seen in a few views that it fills, to compare rotations of it with."""

    def __init__(self, mesh: Mesh, views: Float64[np.ndarray, "n 3 3"] = VIEWS, size: int = 96):
        self.mesh, self.views, self.settings = mesh, views, RenderSettings(size=size)
        self.images = render(mesh, views, self.settings, alpha=True)
        self._known: dict[bytes, Difference] = {}

    def difference(self, g: Rotation) -> Difference:
        """What changes when the object is rotated by g in its own frame before it is looked at."""
        key = rotation_key(g)
        if key not in self._known:
            other = render(self.mesh, self.views @ g.as_matrix(), self.settings, alpha=True)
            # levels by which pixels of either image lie outside the range of their neighbourhood in the other
            outside = np.zeros(other.shape[:-1], np.int16)
            for a, b in ((self.images, other), (other, self.images)):
                high, low = (
                    limit(b[..., :3], (1, 3, 3, 1)).astype(np.int16) for limit in (maximum_filter, minimum_filter)
                )
                outside = np.maximum(outside, np.maximum(a[..., :3] - high, low - a[..., :3]).max(-1))
            covered = ((self.images[..., 3] > 0) | (other[..., 3] > 0)).sum((-1, -2))
            share = (outside > LEVELS).sum((-1, -2)) / np.maximum(covered, 1)
            self._known[key] = Difference(float(share.max()), float(outside.max()))
        return self._known[key]


def rotation_key(g: Rotation) -> bytes:
    """Equal for equal rotations, up to rounding."""
    return np.round(g.as_quat(canonical=True), 9).tobytes()
