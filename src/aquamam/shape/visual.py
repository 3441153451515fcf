"""How visible a difference is: renders of an object and of the turned object, compared pixel by pixel.

A surface that moves by less than a pixel changes what its outline and the edges of its paint look like; that is not a difference that
anyone sees. So a pixel differs by as much as its colour lies outside the range of the 3 x 3 pixels at the same place of the other image.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, UInt8
from scipy.ndimage import maximum_filter, minimum_filter
from scipy.spatial.transform import Rotation

from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.shape.surface import directions, looking_from

VIEWS, PIXELS = 8, 96
LEVELS = 25  # of 255: what a pixel may change without looking another


class Difference(NamedTuple):
    """How different a turned object looks, in the view that shows it most."""

    share: float  # of the object's pixels that change by more than LEVELS
    largest: float  # change of a pixel, in levels


def excess(a: UInt8[np.ndarray, "n h w 3"], b: UInt8[np.ndarray, "n h w 3"]) -> UInt8[np.ndarray, "n h w"]:
    """Levels by which pixels of either image lie outside the range of their 3 x 3 neighbourhood in the other."""
    outside = np.zeros(a.shape, np.int16)
    for one, other in ((a, b), (b, a)):
        high, low = (f(other, (1, 3, 3, 1)).astype(np.int16) for f in (maximum_filter, minimum_filter))
        outside = np.maximum(outside, np.maximum(one - high, low - one))
    return outside.max(-1).astype(np.uint8)


def compare(
    a: UInt8[np.ndarray, "n h w 4"], b: UInt8[np.ndarray, "n h w 4"]
) -> tuple[Float64[np.ndarray, " n"], UInt8[np.ndarray, " n"]]:
    """Of images with coverage: the share of the object's pixels that differ by more than LEVELS, and the largest difference."""
    difference = excess(a[..., :3], b[..., :3])
    covered = (a[..., 3] > 0) | (b[..., 3] > 0)
    share = (difference > LEVELS).sum((-1, -2)) / np.maximum(covered.sum((-1, -2)), 1)
    return share, difference.max((-1, -2))


class Look:
    """An object seen from a few sides, to compare turns of it with."""

    def __init__(self, mesh: Mesh, views: int = VIEWS, size: int = PIXELS):
        """`mesh` turns about its origin and fills the view."""
        self.mesh, self.settings = mesh, RenderSettings(size=size)
        self.views = looking_from(directions(views), 1.0 + np.arange(views) * 2.4)
        self.images = self._render(self.views)
        self._known: dict[bytes, Difference] = {}

    def _render(self, R: Float64[np.ndarray, "n 3 3"]) -> UInt8[np.ndarray, "n h w 4"]:
        return render(self.mesh, R, self.settings, alpha=True)

    def difference(self, turn: Rotation) -> Difference:
        """What changes when the object is turned in its own frame before it is looked at."""
        key = np.round(turn.as_quat(canonical=True), 9).tobytes()
        if key not in self._known:
            share, largest = compare(self.images, self._render(self.views @ turn.as_matrix()))
            self._known[key] = Difference(float(share.max()), float(largest.max()))
        return self._known[key]
