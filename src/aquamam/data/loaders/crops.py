"""Square crops around an object, for data sets whose images show whole scenes."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from aquamam.data.base import UnreadableExample, fit
from aquamam.network.images import to_rgb

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels, edges of pixels being whole numbers


def square_crop(path: Path, name: str, box: Box, margin: float, size: int | None) -> UInt8[np.ndarray, "h w 3"]:
    """A square about the box's centre, `margin` times its longer side; what lies outside the image is black.

    A square keeps the aspect ratio: a stretched picture would show another rotation.
    """
    left, top, right, bottom = box
    side = max(1, round(margin * max(right - left, bottom - top)))
    x, y = round((left + right - side) / 2), round((top + bottom - side) / 2)
    try:
        with Image.open(path) as image:
            crop = to_rgb(image).crop((x, y, x + side, y + side))
    except FileNotFoundError as error:
        raise UnreadableExample(f"image {name} is missing; restore it, or skip unreadable examples.") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise UnreadableExample(f"image {name} cannot be read ({error}); replace it, or skip it.") from error
    return np.asarray(fit(crop, size))
