r"""Cameras, and the square crops that networks read: one convention for training, data sets, predictions and the
service.

A crop is the picture of another camera at the same place: it looks through the middle of the box, has the focal
length $f = \sqrt{f_x f_y}$, and shows a square of `MARGIN` times the longer side of the box. With the camera known,
the picture is turned and straightened to it; without, the square is cut as it is, as if the camera had looked at the
box.

Frames: pixels run right and down from the corner of the image, whole numbers being edges of pixels. Camera
coordinates are ours (x right, y up, z towards the viewer) unless a name says OpenCV (x right, y down, z forward).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from PIL import Image
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.rotations import inverse, rotate

MARGIN = 1.25  # side of a crop in longer sides of the box
NOMINAL = 0.45  # apparent radius of a part in shares of the crop's side: about what crops have on average
FINEST = 8  # samples along a pixel of a crop
Box = tuple[float, float, float, float]  # left, top, width, height in pixels


def check_frame(frame: str) -> str:
    """A frame's name, if it is one."""
    require(frame in ("opengl", "opencv"), f"a camera's frame is opengl or opencv, got {frame!r}.")
    return frame


@dataclass(frozen=True, kw_only=True)
class Camera:
    """Intrinsics as OpenCV calibrates them (cx and cy count from the middle of the first pixel), and its distortion
    (k1, k2, p1, p2, k3)."""

    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        told, extra = (self.fx, self.fy, self.cx, self.cy), len(self.distortion)
        good = all(map(math.isfinite, (*told, *self.distortion))) and min(told[:2]) > 0
        rule = "a camera needs finite fx, fy, cx, cy with positive focal lengths"
        require(good, f"{rule}, got {told}; for example 600,600,320,240.")
        require(extra <= 5, f"lens distortion is at most k1, k2, p1, p2, k3, got {extra} numbers; undistort the image.")

    def ray(self, x: float, y: float) -> tuple[float, float, float]:
        """The ray (x, y, 1) of a pixel in OpenCV coordinates, lens distortion undone by fixed-point steps."""
        u, v = u0, v0 = (x - 0.5 - self.cx) / self.fx, (y - 0.5 - self.cy) / self.fy
        if self.distortion:
            for _ in range(20):
                factor, du, dv = self._distort(u, v)
                u, v = (u0 - du) / factor, (v0 - dv) / factor
            factor, du, dv = self._distort(u, v)
            off = math.hypot((u * factor + du - u0) * self.fx, (v * factor + dv - v0) * self.fy)
            rule = "lens distortion must be invertible where a box is"
            require(off < 0.5, f"{rule}, and pixel {x:g}, {y:g} is {off:.3g} off; undistort the image first.")
        return u, v, 1.0

    def pixels(self, rays: Float64[np.ndarray, "*batch 3"]) -> Float64[np.ndarray, "*batch 2"]:
        """Pixels of rays in OpenCV coordinates."""
        u, v = rays[..., 0] / rays[..., 2], rays[..., 1] / rays[..., 2]
        if self.distortion:
            factor, du, dv = self._distort(u, v)
            u, v = u * factor + du, v * factor + dv
        return np.stack([self.fx * u + self.cx + 0.5, self.fy * v + self.cy + 0.5], -1)

    def _distort(self, u: Any, v: Any) -> tuple[Any, Any, Any]:
        """What multiplies and what shifts numbers or arrays u, v: OpenCV's radial and tangential terms."""
        k1, k2, p1, p2, k3 = (*self.distortion, *[0.0] * (5 - len(self.distortion)))
        r = u * u + v * v
        factor = 1 + r * (k1 + r * (k2 + r * k3))
        return factor, 2 * p1 * u * v + p2 * (r + 2 * u * u), p1 * (r + 2 * v * v) + 2 * p2 * u * v


@dataclass(frozen=True, kw_only=True, eq=False)
class Crop:
    """The camera of a crop: how it is turned from the whole image's, its focal length and its side in pixels."""

    turn: Float64[Tensor, "4"]  # xyzw, takes the crop camera's coordinates to the whole camera's
    focal: float
    side: float


def ray_rotation(t: Float64[Tensor, "*batch 3"]) -> Float64[Tensor, "*batch 4"]:
    """The smallest rotation (xyzw) that takes the line of sight (0, 0, -1) to the ray through t."""
    x, y, z = t.unbind(-1)
    halfway = torch.stack([y, -x, torch.zeros_like(z), torch.linalg.vector_norm(t, dim=-1) - z], -1)
    return halfway / torch.linalg.vector_norm(halfway, dim=-1, keepdim=True).clamp_min(1e-300)


def check_box(box: Sequence[float | int], size: tuple[int, int]) -> Box:
    """A box that has an area and meets an image of (width, height)."""
    good = len(box) == 4 and all(map(math.isfinite, box)) and min(box[2:]) > 0
    rule = "a box is left,top,width,height in pixels with a positive area"
    require(good, f"{rule}, got {tuple(box)}; for example 120,80,64,48.")
    left, top, width, height = map(float, box)
    meets = -width < left < size[0] and -height < top < size[1]
    seen = f"{(left, top, width, height)} in an image of {size[0]} x {size[1]} pixels"
    require(meets, f"a box must meet its image, got {seen}; boxes are left,top,width,height.")
    return left, top, width, height


def crop_camera(box: Box, camera: Camera) -> Crop:
    """The camera of a box's crop."""
    left, top, width, height = box
    focal = math.sqrt(camera.fx * camera.fy)
    flip = torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)  # from OpenCV's frame to ours
    turn = ray_rotation(flip * torch.tensor(camera.ray(left + width / 2, top + height / 2), dtype=torch.float64))
    corners = [camera.ray(left + i * width, top + j * height) for i in (0, 1) for j in (0, 1)]
    seen = rotate(inverse(turn), torch.tensor(corners, dtype=torch.float64) * flip)
    plane = seen[:, :2] / -seen[:, 2:]
    side = MARGIN * focal * float((plane.amax(0) - plane.amin(0)).max())
    rule = "a camera must see its box within less than 180 degrees"
    came = f"the box {box} and focal lengths {camera.fx:g}, {camera.fy:g}"
    require(bool((seen[:, 2] < 0).all()) and 0 < side < math.inf, f"{rule}, got {came}; check fx,fy,cx,cy.")
    return Crop(turn=turn, focal=focal, side=side)


def cut(
    image: Image.Image, box: Sequence[float | int], size: int, camera: Camera | None = None
) -> tuple[Image.Image, Crop]:
    """The crop of a box, size x size pixels, and its camera; what lies outside the image repeats its border."""
    box = check_box(box, image.size)
    if camera is None:  # as if it had looked at the box from so far away that all rays are parallel
        camera = Camera(fx=1e6, fy=1e6, cx=box[0] + box[2] / 2 - 0.5, cy=box[1] + box[3] / 2 - 0.5)
    crop = crop_camera(box, camera)
    # one sample for each pixel, shrunk without gaps; of a large picture the pixels are shrunk before
    fine = size * min(FINEST, max(1, math.ceil(crop.side / size)))
    shrunk = max(1, min(int(crop.side / fine), min(image.size)))
    place = ((np.arange(fine) + 0.5) / fine - 0.5) * crop.side / crop.focal
    x, y = np.meshgrid(place, -place)
    rays = rotate(crop.turn, torch.from_numpy(np.stack([x, y, -np.ones_like(x)], -1))).numpy()
    place = camera.pixels(rays * np.array([1.0, -1.0, -1.0])) / shrunk
    pixels = _bilinear(np.asarray(image.convert("RGB").reduce(shrunk)), place)
    return Image.fromarray(pixels).resize((size, size), Image.Resampling.BOX), crop


def _bilinear(image: np.ndarray, place: Float64[np.ndarray, "h w 2"]) -> np.ndarray:
    height, width = image.shape[:2]
    x, y = np.clip(place[..., 0] - 0.5, 0, width - 1), np.clip(place[..., 1] - 0.5, 0, height - 1)
    j, i = x.astype(int), y.astype(int)
    right, below = np.minimum(j + 1, width - 1), np.minimum(i + 1, height - 1)
    fx, fy = (x - j)[..., None], (y - i)[..., None]
    upper = image[i, j] * (1 - fx) + image[i, right] * fx
    lower = image[below, j] * (1 - fx) + image[below, right] * fx
    return np.clip(upper * (1 - fy) + lower * fy + 0.5, 0, 255).astype(np.uint8)
