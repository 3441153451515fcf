"""The layout of the original AQuaMaM code: a CSV of Euler angles for each split, and PNG images."""

from pathlib import Path

from aquamam.data.loaders.folder import read_rotations, read_table
from aquamam.data.loaders.listed import ListedDataset, choose


class OriginalDataset(ListedDataset):
    """`metadata_SPLIT.csv` with img_f, yaw, pitch, roll (SciPy's "YXZ", radians) and `images/SPLIT/*.png`."""

    kind = "original"
    marks = ("metadata_*.csv", "images")

    def __init__(self, root: Path | str, split: str = "train", *, size: int | None = None):
        self.about = {"rotation": "euler-YXZ-rad", "camera": "opengl"}
        super().__init__(root, split, size)
        path = self.root / f"metadata_{split}.csv"
        table = read_table(path)
        choose("columns", ["img_f"], list(table), path)
        self.names = [f"images/{split}/{file}" for file in table["img_f"]]
        self.classes = (self.root.resolve().name,)
        self.labels = self.classes * len(self.names)
        self.quaternions = read_rotations("euler-YXZ-rad", ("yaw", "pitch", "roll"), table, path).numpy()[:, None]

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted(path.stem.removeprefix("metadata_") for path in root.glob("metadata_*.csv")))
