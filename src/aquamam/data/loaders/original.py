"""The layout of the original AQuaMaM code: a CSV of Euler angles for each split, and PNG images."""

from pathlib import Path

import torch

from aquamam.data.loaders.listed import ListedDataset
from aquamam.data.loaders.tables import numbers, read_table
from aquamam.errors import InputError
from aquamam.geometry.rotations import euler_to_quat


class OriginalDataset(ListedDataset):
    """`metadata_SPLIT.csv` with img_f, yaw, pitch, roll (SciPy's "YXZ", radians) and `images/SPLIT/*.png`."""

    kind = "original"
    marks = ("metadata_*.csv", "images")

    def __init__(self, root: Path | str, split: str = "train", *, size: int | None = None):
        self.about = {"rotation": "euler YXZ, radians", "camera": "opengl"}
        super().__init__(root, split, size)
        path = self.root / f"metadata_{split}.csv"
        table = read_table(path)
        if missing := [name for name in ("img_f", "yaw", "pitch", "roll") if name not in table]:
            raise InputError(f"{path} must have the columns img_f, yaw, pitch, roll, got no {missing[0]!r}.")
        self.names = [f"images/{split}/{file}" for file in table["img_f"]]
        self.classes = (self.root.resolve().name,)
        self.labels = self.classes * len(self.names)
        angles = torch.from_numpy(numbers(table, ("yaw", "pitch", "roll"), path)).reshape(-1, 3)
        self.quaternions = euler_to_quat(angles, "YXZ").numpy()[:, None]

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted(path.stem.removeprefix("metadata_") for path in root.glob("metadata_*.csv")))
