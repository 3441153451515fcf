"""Pascal3D+ 1.1 (Xiang et al. 2014): photographs with viewpoints in MATLAB files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from scipy.io import loadmat

from aquamam.data.base import ListedDataset, choose, decode_image, fit_pixels
from aquamam.errors import InputError
from aquamam.geometry.rotations import euler_to_quat

VIEWPOINT = ("azimuth", "elevation", "theta", "distance")
VOC = Path("PASCAL/VOCdevkit/VOC2012/ImageSets/Main")


class View(NamedTuple):
    """One annotated object: its image, its class, the edges of its box and azimuth, elevation, theta in degrees."""

    image: Path
    label: str
    edges: tuple[float, float, float, float]  # left, top, right, bottom, between pixels
    angles: tuple[float, float, float]


class PascalDataset(ListedDataset):
    """`Images/CLASS_SOURCE/` and `Annotations/CLASS_SOURCE/*.mat`; R = Rz(theta) Rx(elevation - 90) Rz(-azimuth).

    One example for each object of the folder's class that is not occluded, truncated or difficult and has a distance
    other than 0. Split all is everything; train and val need the lists of images that come with the data. Images are
    squares about the boxes, black outside the picture.
    """

    kind = "pascal3d"
    marks = ("Annotations", "Images")

    def read(self, *, classes: Sequence[str] | None = None, margin: float = 1.1) -> None:
        """margin: side of a crop in longer sides of the box."""
        there = sorted({p.name.rpartition("_")[0] for p in (self.root / "Annotations").iterdir() if p.is_dir()})
        choose("classes", classes or (), there, self.root)
        self.classes, self.margin = tuple(classes or there), margin
        self.about = {"rotation": "azimuth, elevation, theta", "camera": "opengl", "crop_margin": margin}
        self.views = [view for label in self.classes for view in self._views(label)]
        self.names = [str(view.image.relative_to(self.root)) for view in self.views]
        self.labels = [view.label for view in self.views]
        azimuth, elevation, theta = np.array([view.angles for view in self.views], np.float64).reshape(-1, 3).T
        angles = torch.from_numpy(np.stack([theta, elevation - 90, -azimuth], -1))
        self.quaternions = euler_to_quat(angles, "ZXZ", degrees=True).numpy()[:, None]

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        lists = [*root.glob("Image_sets/*_imagenet_*.txt"), *(root / VOC).glob("*_*.txt")]
        return ("all", *sorted({path.stem.rpartition("_")[2] for path in lists} - {"trainval"}))

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        left, top, right, bottom = self.views[i].edges
        side = max(1, round(self.margin * max(right - left, bottom - top)))
        x, y = round((left + right - side) / 2), round((top + bottom - side) / 2)
        whole = Image.fromarray(decode_image(self.source(i), self.names[i]))
        return fit_pixels(np.asarray(whole.crop((x, y, x + side, y + side))), self.size)

    def _views(self, label: str) -> Iterator[View]:
        lists = {
            "pascal": self.root / VOC / f"{label}_{self.split}.txt",
            "imagenet": self.root / "Image_sets" / f"{label}_imagenet_{self.split}.txt",
        }
        for source, path in lists.items():
            lines = [line.split() for line in path.read_text().splitlines() if line.strip()] if path.exists() else []
            listed = {words[0] for words in lines if len(words) == 1 or words[1] != "-1"}  # -1 marks absent classes
            for path in sorted((self.root / "Annotations" / f"{label}_{source}").glob("*.mat")):
                if self.split == "all" or path.stem in listed:
                    yield from read_views(path, label, self.root / "Images" / f"{label}_{source}")


def read_views(path: Path, label: str, images: Path) -> Iterator[View]:
    """The usable objects of one annotation file."""
    try:
        record = loadmat(path, squeeze_me=True, struct_as_record=False)["record"]
        objects = np.atleast_1d(record.objects)
    except Exception as error:  # a damaged file raises nearly anything
        raise InputError(f"{path} must be a MATLAB file with record.objects, got: {error}.") from error
    file = getattr(record, "filename", "") or next((p.name for p in images.glob(f"{path.stem}.*")), path.stem)
    for thing in objects:
        flags = [np.any(np.asarray(getattr(thing, name, 0)) != 0) for name in ("occluded", "truncated", "difficult")]
        if getattr(thing, "class", None) != label or any(flags):
            continue
        viewpoint, box = getattr(thing, "viewpoint", None), np.asarray(thing.bbox, np.float64).ravel()
        numbers = [np.asarray(getattr(viewpoint, name, ()), np.float64).ravel() for name in VIEWPOINT]
        usable = all(one.size == 1 and np.isfinite(one[0]) for one in numbers)  # absent and empty ones are not
        if box.shape == (4,) and usable and numbers[3][0]:
            left, top, right, bottom = (box - [1, 1, 0, 0]).tolist()  # MATLAB counts from 1 and includes the last
            azimuth, elevation, theta, _ = np.concatenate(numbers).tolist()
            yield View(images / str(file), label, (left, top, right, bottom), (azimuth, elevation, theta))
