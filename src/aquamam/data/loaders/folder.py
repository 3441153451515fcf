"""A plain folder of images with a CSV of rotations; how a rotation is written is said, never guessed. The original
AQuaMaM code's layout is one."""

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from aquamam.data.base import ListedDataset, choose
from aquamam.errors import InputError, require
from aquamam.geometry import rotations as rot
from aquamam.geometry.symmetry import SymmetryGroup

IMAGE_COLUMNS = ("image", "img", "file", "filename", "path")
CLASS_COLUMNS = ("class", "label")
CLEAR = {  # columns whose names leave no doubt
    "qx,qy,qz,qw": "xyzw",
    "quat_xyzw": "xyzw",
    "quat_wxyz": "wxyz",
    "r11,r12,r13,r21,r22,r23,r31,r32,r33": "matrix",
    "r00,r01,r02,r10,r11,r12,r20,r21,r22": "matrix",
    "rotvec_x,rotvec_y,rotvec_z": "rotvec",
}
HOW = (
    "name the columns qx,qy,qz,qw or quat_xyzw or quat_wxyz or r11,...,r33 or rotvec_x,rotvec_y,rotvec_z or "
    "euler_YXZ_deg_1,..._2,..._3, or give rotation, for example 'wxyz:q0,q1,q2,q3' or 'euler-YXZ-deg:yaw,pitch,roll'"
)
EULER = r"([xyz]{3}|[XYZ]{3})%s(deg|rad)"
# how many numbers each kind has, and what makes them canonical xyzw; matrices are by rows
KINDS: dict[str, tuple[int, Callable[[Tensor, str], Tensor]]] = {
    "xyzw": (4, rot.as_unit_quat),
    "wxyz": (4, lambda values, name: rot.from_wxyz(rot.as_unit_quat(values, name))),
    "matrix": (9, lambda values, name: rot.matrix_to_quat(rot.as_rotation_matrix(values.unflatten(-1, (3, 3)), name))),
    "rotvec": (3, lambda values, name: rot.rotvec_to_quat(values)),
}
Table = dict[str, list[str]]  # columns by name


def read_table(path: Path) -> Table:
    """A CSV file whose first line names the columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[field.strip() for field in row] for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} must be a CSV file in UTF-8, got: {error}.") from None
    require(len(rows) > 0, f"{path} is empty; its first line must name the columns.")
    header = rows.pop(0)
    for name in header:
        require(header.count(name) == 1, f"columns of {path} must have different names, got {name!r} twice.")
    for line, row in enumerate(rows, start=2):
        rule = f"line {line} of {path} must have {len(header)} fields like its header"
        require(len(row) == len(header), f"{rule}, got {len(row)}.")
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def read_numbers(table: Table, columns: Sequence[str], path: Path, many: int) -> Float64[np.ndarray, "rows many"]:
    """So many finite numbers of each row, one a column or all in one column with spaces between."""
    rows = []
    for line, texts in enumerate(zip(*(table[name] for name in columns)), start=2):
        where = f"line {line} of {path} must have"
        if len(columns) == 1 < many:
            pieces = re.sub(r"[,;()\[\]]", " ", texts[0]).split()
            got = f"{len(pieces)}: {texts[0]!r}"
            require(len(pieces) == many, f"{where} {many} numbers in column {columns[0]!r}, got {got}.")
            texts = tuple(pieces)
        for name, text in zip([*columns] * many, texts):
            require(is_number(text), f"{where} a finite number in column {name!r}, got {text!r}.")
        rows.append([float(text) for text in texts])
    return np.array(rows, np.float64).reshape(-1, many)


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_rotations(kind: str, columns: Sequence[str], table: Table, path: Path) -> Float64[Tensor, "rows 4"]:
    """Columns as canonical xyzw; Euler angles are in SciPy's notation, rotation vectors in radians."""
    rule = "rotation must be KIND:COLUMNS, KIND xyzw, wxyz, matrix, rotvec or euler-YXZ-deg"
    if euler := re.fullmatch("euler-" + EULER % "-", kind):
        convention, degrees = euler[1], euler[2] == "deg"
        many, convert = 3, lambda values, name: rot.euler_to_quat(values, convention, degrees=degrees)
    else:
        require(kind in KINDS, f"{rule}, got {kind}:{','.join(columns)}.")
        many, convert = KINDS[kind]
    choose("columns", columns, list(table), path)
    rule = f"{kind} needs {many} columns, or one with {many} numbers"
    require(len(columns) in (1, many), f"{rule}, got {len(columns)}.")
    values = torch.from_numpy(read_numbers(table, columns, path, many))
    try:
        return convert(values, "")
    except InputError:
        for line, value in enumerate(values, start=2):  # again one by one, to say which line it is
            convert(value, f"the rotation in line {line} of {path}")
        raise


def find_rotation(table: Table, path: Path) -> str:
    """The statement that the names of the columns make, if they leave no doubt."""
    found = [f"{kind}:{columns}" for columns, kind in CLEAR.items() if set(columns.split(",")) <= set(table)]
    for name in table:
        if match := re.fullmatch(f"(euler_{EULER % '_'})(_1)?", name):
            columns = [f"{match[1]}_{k}" for k in (1, 2, 3)] if match[4] else [name]
            if set(columns) <= set(table):
                found.append(f"euler-{match[2]}-{match[3]}:{','.join(columns)}")
    several = " and ".join(statement.partition(":")[2] for statement in found[:2])
    rule = f"{path} holds more than one rotation ({several}); say which by rotation=KIND:COLUMNS."
    require(len(found) < 2, rule)
    require(len(found) > 0, f"{path} does not say how its columns {', '.join(table)} hold a rotation; {HOW}.")
    return found[0]


class FolderDataset(ListedDataset):
    """A folder with one CSV (or SPLIT.csv, or a column split) that names images beside it, or the CSV itself.

    Rows of the same image are its equivalent true rotations, the first the pictured one. Optional columns: class (or
    label) and split; other columns are left alone. `symmetries.json` may give symmetries, class by class. Rotations
    take the object to an OpenGL camera (x right, y up, z towards the viewer) unless `camera="opencv"`, and the camera
    to the object with `inverted`.
    """

    kind = "folder"
    marks = ("*.csv",)

    def read(self, *, rotation: str | None = None, camera: str = "opengl", inverted: bool = False) -> None:
        """rotation: KIND:COLUMNS, such as wxyz:q0,q1,q2,q3, or matrix:R with all numbers in one column."""
        require(camera in ("opengl", "opencv"), f"camera must be opengl or opencv, got {camera!r}.")
        files = tables(self.root)
        path = next(path for path in files if len(files) == 1 or path.stem == self.split)
        self.folder, table = path.parent, read_table(path)
        rows_below = len(next(iter(table.values())))
        require(rows_below > 0, f"{path} has no rows below its header; a data set needs at least one.")
        kind, _, rest = (rotation or find_rotation(table, path)).partition(":")
        columns = [name.strip() for name in rest.split(",")]
        q = read_rotations(kind, columns, table, path)
        q = rot.inverse(q) if inverted else q
        q = rot.opencv_to_opengl(q) if camera == "opencv" else q
        named = [name for name in IMAGE_COLUMNS if name in table]
        rule = f"{path} must name its images in one column out of {', '.join(IMAGE_COLUMNS)}"
        require(len(named) == 1, f"{rule}, got {' and '.join(named) or ', '.join(table)}.")
        divided = self.split in table.get("split", ())
        rows: dict[str, list[int]] = {}
        for row, file in enumerate(table[named[0]]):
            if not divided or table["split"][row] == self.split:
                rows.setdefault(file, []).append(row)
        self.names = list(rows)
        self.quaternions = [q.numpy()[of_image] for of_image in rows.values()]
        every = next((table[name] for name in CLASS_COLUMNS if name in table), [self.folder.resolve().name] * len(q))
        self.classes = tuple(sorted(set(every)))
        self.labels = [every[of_image[0]] for of_image in rows.values()]
        ignored = [name for name in table if name not in {*named, *columns, *CLASS_COLUMNS, "split"}]
        self.about = {"rotation": kind, "columns": columns, "camera": camera, "ignored": ignored}
        self.symmetries = read_symmetries(self.folder / "symmetries.json")

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        files = tables(root)
        if len(files) != 1:
            return tuple(path.stem for path in files)
        named = {files[0].stem} & {"train", "valid", "test"}  # a table of its own for the one split there is
        return ("all", *sorted(named.union(read_table(files[0]).get("split", ()))))

    def source(self, i: int) -> Path:
        return self.folder / self.names[i]


def tables(root: Path) -> list[Path]:
    """The CSV files of a folder, or the one that is named."""
    return [root] if root.suffix == ".csv" else sorted(root.glob("*.csv"))


def read_symmetries(path: Path) -> dict[str, SymmetryGroup]:
    """Class -> group, from a JSON file that need not be there."""
    try:
        data = json.loads(path.read_text()) if path.exists() else {}
        return {str(label): SymmetryGroup.from_dict(entry) for label, entry in data.items()}
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise InputError(f"{path} must be a JSON dictionary from class to symmetry, got: {error}.") from None


class OriginalDataset(ListedDataset):
    """`metadata_SPLIT.csv` with img_f, yaw, pitch, roll (SciPy's "YXZ", radians) and `images/SPLIT/*.png`."""

    kind = "original"
    marks = ("metadata_*.csv", "images")

    def read(self) -> None:
        self.about = {"rotation": "euler-YXZ-rad", "camera": "opengl"}
        path = self.root / f"metadata_{self.split}.csv"
        table = read_table(path)
        choose("columns", ["img_f"], list(table), path)
        self.names = [f"images/{self.split}/{file}" for file in table["img_f"]]
        self.classes = (self.root.resolve().name,)
        self.labels = self.classes * len(self.names)
        self.quaternions = read_rotations("euler-YXZ-rad", ("yaw", "pitch", "roll"), table, path).numpy()[:, None]

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted(path.stem.removeprefix("metadata_") for path in root.glob("metadata_*.csv")))
