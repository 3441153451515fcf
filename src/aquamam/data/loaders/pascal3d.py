"""Pascal3D+ 1.1 (Xiang et al. 2014): photographs with viewpoints in MATLAB files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, UInt8

from aquamam.data.base import RotationDataset
from aquamam.data.loaders.crops import Box, square_crop
from aquamam.errors import InputError
from aquamam.geometry.rotations import euler_to_quat

SOURCES = ("pascal", "imagenet")
VOC = Path("PASCAL/VOCdevkit/VOC2012/ImageSets/Main")


@dataclass(frozen=True, kw_only=True)
class View:
    """One annotated object: its image, its box and azimuth, elevation, theta in degrees."""

    image: Path
    label: str
    box: Box
    angles: tuple[float, float, float]


class PascalDataset(RotationDataset):
    """`Images/CLASS_SOURCE/` and `Annotations/CLASS_SOURCE/*.mat`; R = Rz(theta) Rx(elevation - 90) Rz(-azimuth).

    One example for each object of the folder's class that is not occluded, truncated or difficult and has a distance
    other than 0. Split all is everything; train and val need the lists of images that come with the data.
    """

    kind = "pascal3d"

    def __init__(
        self,
        root: Path | str,
        split: str = "all",
        *,
        size: int | None = None,
        classes: Sequence[str] | None = None,
        margin: float = 1.1,
    ):
        self.root, self.split, self.size, self.margin = Path(root), split, size, margin
        there = sorted({p.name.rpartition("_")[0] for p in (self.root / "Annotations").iterdir() if p.is_dir()})
        if unknown := [name for name in classes or () if name not in there]:
            raise InputError(f"{root} has the classes {', '.join(there)}, not {unknown[0]!r}; choose among them.")
        self.classes = tuple(classes or there)
        if split not in self.splits(self.root):
            raise InputError(f"{root} has the splits {', '.join(self.splits(self.root))}, not {split!r}; choose one.")
        self.views = [view for label in self.classes for view in self._views(label)]
        azimuth, elevation, theta = np.array([view.angles for view in self.views], np.float64).reshape(-1, 3).T
        angles = np.stack([theta, elevation - 90, -azimuth], -1)
        self._rotations = euler_to_quat(torch.from_numpy(angles), "ZXZ", degrees=True).numpy()

    @staticmethod
    def recognises(root: Path) -> bool:
        return (root / "Annotations").is_dir() and (root / "Images").is_dir()

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        lists = [*root.glob("Image_sets/*_imagenet_*.txt"), *(root / VOC).glob("*_*.txt")]
        return ("all", *sorted({path.stem.rpartition("_")[2] for path in lists} - {"trainval"}))

    def _views(self, label: str) -> Iterator[View]:
        for source in SOURCES:
            folder = self.root / "Annotations" / f"{label}_{source}"
            wanted = self._listed(label, source)
            for path in sorted(folder.glob("*.mat")):
                if wanted is None or path.stem in wanted:
                    yield from read_views(path, label, self.root / "Images" / f"{label}_{source}")

    def _listed(self, label: str, source: str) -> set[str] | None:
        """Stems of the split's images; None is all."""
        if self.split == "all":
            return None
        if source == "imagenet":
            path = self.root / "Image_sets" / f"{label}_imagenet_{self.split}.txt"
        else:
            path = self.root / VOC / f"{label}_{self.split}.txt"
        if not path.exists():
            return set()
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        return {words[0] for words in lines if len(words) == 1 or words[1] != "-1"}  # VOC marks absent classes by -1

    def __len__(self) -> int:
        return len(self.views)

    def label(self, i: int) -> str:
        return self.views[i].label

    def name(self, i: int) -> str:
        return str(self.views[i].image.relative_to(self.root))

    def rotations(self, i: int) -> Float64[np.ndarray, "1 4"]:
        return self._rotations[i : i + 1]

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return square_crop(self.views[i].image, self.name(i), self.views[i].box, self.margin, self.size)

    def describe(self) -> dict[str, Any]:
        return {"rotation": "azimuth, elevation, theta", "camera": "opengl", "crop_margin": self.margin}


def read_views(path: Path, label: str, images: Path) -> Iterator[View]:
    """The usable objects of one annotation file."""
    from scipy.io import loadmat

    try:
        record = loadmat(path, squeeze_me=True, struct_as_record=False)["record"]
        objects = np.atleast_1d(record.objects)
    except Exception as error:  # a damaged file raises nearly anything
        raise InputError(
            f"{path} must be a MATLAB file with record.objects, got: {error}; download it again."
        ) from error
    image = images / str(
        getattr(record, "filename", "") or next((p.name for p in images.glob(f"{path.stem}.*")), path.stem)
    )
    for thing in objects:
        if getattr(thing, "class", None) != label or any(
            _flag(thing, name) for name in ("occluded", "truncated", "difficult")
        ):
            continue
        viewpoint = getattr(thing, "viewpoint", None)
        angles = [_number(viewpoint, name) for name in ("azimuth", "elevation", "theta")]
        distance = _number(viewpoint, "distance")
        box = np.asarray(thing.bbox, np.float64).ravel()
        if distance and box.shape == (4,) and all(angle is not None for angle in angles):
            azimuth, elevation, theta = (float(angle or 0) for angle in angles)
            left, top, right, bottom = box - [1, 1, 0, 0]  # MATLAB counts pixels from 1 and includes the last
            yield View(
                image=image,
                label=label,
                box=(float(left), float(top), float(right), float(bottom)),
                angles=(azimuth, elevation, theta),
            )


def _flag(thing: Any, name: str) -> bool:
    return bool(np.any(np.asarray(getattr(thing, name, 0)) != 0))


def _number(viewpoint: Any, name: str) -> float | None:
    """A finite number of a viewpoint; absent and empty ones are None."""
    value = np.asarray(getattr(viewpoint, name, ())).ravel()
    if value.size != 1 or not np.isfinite(float(value[0])):
        return None
    return float(value[0])
