"""The layout of the original AQuaMaM code: a CSV of Euler angles for each split, and PNG images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, UInt8

from aquamam.data.base import RotationDataset, decode_image
from aquamam.data.loaders.tables import numbers, read_table
from aquamam.errors import InputError
from aquamam.geometry.rotations import euler_to_quat


class OriginalDataset(RotationDataset):
    """`metadata_SPLIT.csv` with img_f, yaw, pitch, roll (SciPy's "YXZ", radians) and `images/SPLIT/*.png`."""

    kind = "original"

    def __init__(self, root: Path | str, split: str = "train", *, size: int | None = None):
        self.root, self.split, self.size = Path(root), split, size
        path = self.root / f"metadata_{split}.csv"
        if not path.exists():
            raise InputError(f"{root} has the splits {', '.join(self.splits(self.root))}, not {split!r}; choose one.")
        table = read_table(path)
        if missing := [name for name in ("img_f", "yaw", "pitch", "roll") if name not in table]:
            raise InputError(f"{path} must have the columns img_f, yaw, pitch, roll, got no {missing[0]!r}.")
        self.files = table["img_f"]
        angles = numbers(table, ("yaw", "pitch", "roll"), path)
        self._rotations = euler_to_quat(torch.from_numpy(angles), "YXZ").numpy()
        self.classes = (self.root.resolve().name,)

    @staticmethod
    def recognises(root: Path) -> bool:
        return any(root.glob("metadata_*.csv")) and (root / "images").is_dir()

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted(path.stem.removeprefix("metadata_") for path in root.glob("metadata_*.csv")))

    def __len__(self) -> int:
        return len(self.files)

    def name(self, i: int) -> str:
        return f"images/{self.split}/{self.files[i]}"

    def rotations(self, i: int) -> Float64[np.ndarray, "1 4"]:
        return self._rotations[i : i + 1]

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return decode_image(self.root / self.name(i), self.name(i), self.size)

    def describe(self) -> dict[str, Any]:
        return {"rotation": "euler YXZ, radians", "camera": "opengl"}
