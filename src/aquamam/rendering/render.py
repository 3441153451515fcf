"""Images of a mesh under rotations, without display, GL or GPU.

Camera coordinates: x right, y up, z towards the viewer. The object is rotated about the origin, x_cam = R x_obj; the
camera stands at (0, 0, distance) and looks at it; the light stands still with the camera.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image, ImageDraw, ImageFont

from aquamam.errors import Config, InputError, require
from aquamam.rendering.meshes import GREY, Mesh
from aquamam.rendering.scene import scene_of

Colour = tuple[int, int, int]
Number = float | int


@dataclass(frozen=True, kw_only=True)
class RenderSettings(Config):
    """Everything besides mesh and rotation that decides an image; the defaults are the paper's camera and light."""

    called = "a render setting"

    size: int | tuple[int, int] = 224  # pixels: the side of a square, or (height, width)
    supersample: int = 2  # n x n samples a pixel
    distance: Number = 8.0  # from the camera to the origin, in the mesh's units
    fov_deg: Number = 26.98  # vertical angle of view
    near: Number = 0.05  # nothing nearer to the camera's plane is drawn
    light: tuple[Number, Number, Number] = (0.0, 0.707, 1.414)  # direction towards the light, camera coordinates
    diffuse: Number = 0.7
    ambient: Number = 0.7  # with diffuse 0.7, colours up to 255 / 1.4 = 182 never saturate
    colour: Colour = GREY  # of meshes that bring neither texture nor colours
    background: Colour | str = (255, 255, 255)  # or "random": one colour an image, drawn from the seed

    def __post_init__(self) -> None:
        for field in ("distance", "fov_deg", "near", "diffuse", "ambient"):
            object.__setattr__(self, field, float(getattr(self, field)))  # 8 and 8.0 are one setting
        height, width = self.shape
        ground = (0, 0, 0) if self.background == "random" else self.background
        rules = {
            "size must lie between 1 and 8192 pixels, got {0.size}": 1 <= height <= 8192 and 1 <= width <= 8192,
            "supersample must lie between 1 and 8, got {0.supersample}; 2 is the default": 1 <= self.supersample <= 8,
            "near and distance need 0 < near < distance, got {0.near} and {0.distance}": (
                0 < self.near < self.distance < math.inf
            ),
            "fov_deg must lie between 0 and 175 degrees, got {0.fov_deg}": 0 < self.fov_deg < 175,
            "diffuse must be a number from 0 up, got {0.diffuse}; 0.7 is the paper's": 0 <= self.diffuse < math.inf,
            "ambient must be a number from 0 up, got {0.ambient}; 0.7 is the paper's": 0 <= self.ambient < math.inf,
            "light must be a direction other than zero, got {0.light}": 0 < np.linalg.norm(self.light) < math.inf,
            "colour must be three numbers from 0 to 255, got {0.colour}": _is_colour(self.colour),
            "background must be three numbers from 0 to 255, or 'random', got {0.background!r}": _is_colour(ground),
        }
        for rule, holds in rules.items():
            require(bool(holds), f"{rule.format(self)}.")

    @property
    def shape(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def _is_colour(value: Any) -> bool:
    return not isinstance(value, str) and len(value) == 3 and all(0 <= c <= 255 for c in value)


def render(
    mesh: Mesh, R: Any, settings: RenderSettings | None = None, *, backgrounds: Any = None, alpha: bool = False
) -> UInt8[np.ndarray, "*batch h w c"]:
    """Images (*batch, H, W, 3) of a mesh under rotations R, matrices (*batch, 3, 3) or quaternions xyzw (*batch, 4).

    The same mesh, rotation and settings give the same bytes, whatever else is in the batch.

    backgrounds: one colour an image, (*batch, 3), instead of the settings'.
    alpha: a fourth channel with the share of each pixel that the object covers.
    """
    from aquamam.rendering import raster  # numba takes half a second to import, and many imports of this draw nothing

    settings = settings or RenderSettings()
    matrices, batch = _matrices(R)
    backgrounds = settings.background if backgrounds is None else backgrounds
    if isinstance(backgrounds, str):
        raise InputError("background 'random' needs a colour an image, got none; pass backgrounds=(*batch, 3).")
    try:
        colours = np.broadcast_to(backgrounds, (*batch, 3)).reshape(-1, 3).clip(0, 255).astype(np.uint8)
    except ValueError:
        got = np.shape(backgrounds)
        raise InputError(f"backgrounds must be one colour or one an image, {(*batch, 3)}, got shape {got}.") from None
    light = np.array(settings.light, np.float64)
    tangent = math.tan(math.radians(settings.fov_deg) / 2)
    red, green, blue = map(float, settings.colour)
    shading = settings.diffuse, settings.ambient, settings.supersample, (red, green, blue)
    lens = raster.Lens(settings.distance, tangent, settings.near, *shading)
    out = np.empty((len(matrices), *settings.shape, 4 if alpha else 3), np.uint8)
    raster.draw(scene_of(mesh), matrices, light / np.sqrt((light * light).sum()), colours, lens, out)
    return out.reshape(*batch, *out.shape[1:])


def quat_to_matrix(q: Float64[np.ndarray, "n 4"]) -> Float64[np.ndarray, "n 3 3"]:
    """Rotation matrices of unit quaternions xyzw."""
    x, y, z, w = q.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.ascontiguousarray(np.moveaxis(np.array(rows), -1, 0))


def _matrices(R: Any) -> tuple[Float64[np.ndarray, "n 3 3"], tuple[int, ...]]:
    """Rotations as float64 matrices (n, 3, 3), checked, and their batch shape."""
    R = np.asarray(R.detach().cpu() if hasattr(R, "detach") else R, dtype=np.float64)  # perhaps a tensor on a GPU
    if R.ndim >= 2 and R.shape[-2:] == (3, 3):
        batch, R = R.shape[:-2], np.array(R.reshape(-1, 3, 3), order="C")  # a read-only view would compile anew
        error = np.abs(R @ R.swapaxes(-1, -2) - np.eye(3)).max(initial=0.0)
        if not (error < 1e-3 and (np.linalg.det(R) > 0).all()):
            raise InputError(
                "R must hold rotations, got matrices with a scale, a shear or a mirror; make them orthonormal."
            )
        return R, batch
    if R.ndim >= 1 and R.shape[-1] == 4:
        batch, q = R.shape[:-1], R.reshape(-1, 4)
        norm = np.sqrt((q * q).sum(-1, keepdims=True))
        if not (np.abs(norm - 1) < 1e-3).all():
            raise InputError("R must hold unit quaternions xyzw, got norms other than 1; divide them by their norm.")
        return quat_to_matrix(q / norm), batch
    raise InputError(f"R must be matrices (*batch, 3, 3) or quaternions xyzw (*batch, 4), got shape {R.shape}.")


def contact_sheet(
    images: UInt8[np.ndarray, "n h w c"], columns: int = 8, labels: list[str] | None = None, gap: int = 4
) -> Image.Image:
    """Images side by side, `columns` a row, each with its label below."""
    n, h, w = images.shape[:3]
    if labels is not None and len(labels) != n:
        raise InputError(f"labels must be one an image, got {len(labels)} for {n} images.")
    columns = max(1, min(columns, n))
    lines = max((label.count("\n") + 1 for label in labels), default=0) if labels else 0
    row = h + gap + 13 * lines
    sheet = Image.new("RGB", (columns * (w + gap) + gap, max(1, -(-n // columns)) * row + gap), (236, 236, 238))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for i in range(n):
        x, y = gap + i % columns * (w + gap), gap + i // columns * row
        sheet.paste(Image.fromarray(np.ascontiguousarray(images[i, ..., :3])), (x, y))
        if labels:
            pen.multiline_text((x + 1, y + h), labels[i], fill=(30, 30, 34), font=font, spacing=1)
    return sheet
