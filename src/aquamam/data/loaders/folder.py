"""A plain folder of images with a CSV of rotations; how a rotation is written is said, never guessed."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from aquamam.data.loaders.listed import ListedDataset, choose
from aquamam.data.loaders.tables import Table, numbers, read_table
from aquamam.errors import InputError
from aquamam.geometry.rotations import (
    as_rotation_matrix,
    as_unit_quat,
    euler_to_quat,
    from_wxyz,
    inverse,
    matrix_to_quat,
    opencv_to_opengl,
    rotvec_to_quat,
)
from aquamam.geometry.symmetry import SymmetryGroup

IMAGE_COLUMNS = ("image", "img", "file", "filename", "path")
CLASS_COLUMNS = ("class", "label")
NUMBERS = {"xyzw": 4, "wxyz": 4, "matrix": 9, "rotvec": 3, "euler": 3}
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


@dataclass(frozen=True, kw_only=True)
class RotationColumns:
    """Which columns hold the rotation, and as what: xyzw, wxyz, matrix (by rows), rotvec (radians) or Euler angles."""

    kind: str
    columns: tuple[str, ...]  # one a number, or a single one with all numbers in it
    convention: str = ""  # of Euler angles, SciPy's notation: upper case intrinsic, lower case extrinsic
    degrees: bool = False

    @classmethod
    def parse(cls, text: str, table: Table, path: Path) -> "RotationColumns":
        """From a statement such as wxyz:q0,q1,q2,q3 or euler-YXZ-deg:yaw,pitch,roll or matrix:R."""
        stated, _, rest = text.partition(":")
        columns = tuple(name.strip() for name in rest.split(","))
        euler = re.fullmatch(r"euler-([xyz]{3}|[XYZ]{3})-(deg|rad)", stated)
        kind = "euler" if euler else stated
        if kind not in NUMBERS or stated == "euler":
            raise InputError(
                f"rotation must be KIND:COLUMNS, KIND xyzw, wxyz, matrix, rotvec or euler-YXZ-deg, got {text!r}."
            )
        choose("columns", columns, list(table), path)
        if len(columns) not in (1, NUMBERS[kind]):
            many = NUMBERS[kind]
            raise InputError(f"{stated} needs {many} columns, or one with {many} numbers, got {len(columns)}.")
        convention, unit = euler.groups() if euler else ("", "")
        return cls(kind=kind, columns=columns, convention=convention, degrees=unit == "deg")

    @property
    def words(self) -> str:
        """The kind, for people."""
        unit = "degrees" if self.degrees else "radians"
        return self.kind if self.kind != "euler" else f"euler {self.convention}, {unit}"

    def quaternions(self, table: Table, path: Path) -> Float64[np.ndarray, "rows 4"]:
        """Canonical xyzw quaternions of all rows."""
        values = torch.from_numpy(numbers(table, self.columns, path, NUMBERS[self.kind]))
        try:
            return self._convert(values, "").numpy()
        except InputError:
            for row, value in enumerate(values):  # again one by one, to say which line it is
                self._convert(value, f"the rotation in line {row + 2} of {path}")
            raise

    def _convert(self, values: Tensor, name: str) -> Float64[Tensor, "*batch 4"]:
        if self.kind == "xyzw":
            return as_unit_quat(values, name)
        if self.kind == "wxyz":
            return from_wxyz(as_unit_quat(values, name))
        if self.kind == "matrix":
            return matrix_to_quat(as_rotation_matrix(values.unflatten(-1, (3, 3)), name))
        if self.kind == "rotvec":
            return rotvec_to_quat(values)
        return euler_to_quat(values, self.convention, degrees=self.degrees)


def find_rotation(table: Table, path: Path) -> str:
    """The statement that the names of the columns make, if they leave no doubt."""
    found = [f"{kind}:{columns}" for columns, kind in CLEAR.items() if set(columns.split(",")) <= set(table)]
    for name in table:
        if match := re.fullmatch(r"(euler_([xyz]{3}|[XYZ]{3})_(deg|rad))(_1)?", name):
            columns = [f"{match[1]}_{k}" for k in (1, 2, 3)] if match[4] else [name]
            if set(columns) <= set(table):
                found.append(f"euler-{match[2]}-{match[3]}:{','.join(columns)}")
    if len(found) > 1:
        several = " and ".join(statement.partition(":")[2] for statement in found[:2])
        raise InputError(f"{path} holds more than one rotation ({several}); say which by rotation=KIND:COLUMNS.")
    if not found:
        raise InputError(f"{path} does not say how its columns {', '.join(table)} hold a rotation; {HOW}.")
    return found[0]


class FolderDataset(ListedDataset):
    """A folder with one CSV (or SPLIT.csv, or a column split) that names images beside it, or the CSV itself.

    Rows of the same image are its equivalent true rotations, the first the pictured one. Optional columns: class (or
    label) and split; other columns are left alone. `symmetries.json` may give symmetries, class by class. Rotations
    take the object to an OpenGL camera (x right, y up, z towards the viewer) unless `camera="opencv"`, and the camera
    to the object with `inverted`.
    """

    kind = "folder"

    def __init__(
        self,
        root: Path | str,
        split: str = "all",
        *,
        size: int | None = None,
        rotation: str | None = None,
        camera: str = "opengl",
        inverted: bool = False,
    ):
        if camera not in ("opengl", "opencv"):
            raise InputError(f"camera must be opengl or opencv, got {camera!r}.")
        self.root, self.split, self.size, self.camera = Path(root), split, size, camera
        path = self._table_of(self.root, split)
        self.folder = path.parent
        table = read_table(path)
        if not next(iter(table.values())):
            raise InputError(f"{path} has no rows below its header; a data set needs at least one.")
        self.spec = RotationColumns.parse(rotation or find_rotation(table, path), table, path)
        q = torch.from_numpy(self.spec.quaternions(table, path))
        q = inverse(q) if inverted else q
        q = opencv_to_opengl(q) if camera == "opencv" else q
        image_column = one_of(table, IMAGE_COLUMNS, path)
        rows: dict[str, list[int]] = {}
        for row, file in enumerate(table[image_column]):
            if "split" not in table or split == "all" or table["split"][row] == split or path.stem == split:
                rows.setdefault(file, []).append(row)
        if not rows:
            choose("splits", [split], sorted(set(table["split"])), path)
        self.names = list(rows)
        self.quaternions = [q.numpy()[of_image] for of_image in rows.values()]
        every = next((table[name] for name in CLASS_COLUMNS if name in table), None)
        self.classes = tuple(sorted(set(every))) if every else (self.folder.resolve().name,)
        self.labels = [every[of_image[0]] if every else self.classes[0] for of_image in rows.values()]
        used = {image_column, *self.spec.columns, *CLASS_COLUMNS, "split"}
        self.ignored = tuple(name for name in table if name not in used)
        self._symmetries = read_symmetries(self.folder / "symmetries.json")

    @staticmethod
    def recognises(root: Path) -> bool:
        return root.suffix == ".csv" or any(root.glob("*.csv"))

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        files = [root] if root.suffix == ".csv" else sorted(root.glob("*.csv"))
        if len(files) > 1:
            return tuple(path.stem for path in files)
        table = read_table(files[0]) if files else {}
        return ("all", *sorted(set(table.get("split", ()))))

    @staticmethod
    def _table_of(root: Path, split: str) -> Path:
        files = [root] if root.suffix == ".csv" else sorted(root.glob("*.csv"))
        named = [path for path in files if len(files) == 1 or path.stem == split]
        if not named:
            there = ", ".join(path.name for path in files) or "none"
            raise InputError(f"{root} must have one CSV file or {split}.csv, got {there}; name the file itself.")
        return named[0]

    def source(self, i: int) -> Path:
        return self.folder / self.names[i]

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return self._symmetries.get(label)

    def describe(self) -> dict[str, Any]:
        told = {"rotation": self.spec.words, "columns": list(self.spec.columns), "camera": self.camera}
        return {**told, "ignored": list(self.ignored)}


def one_of(table: Table, names: tuple[str, ...], path: Path) -> str:
    found = [name for name in names if name in table]
    if len(found) != 1:
        got = " and ".join(found) if found else ", ".join(table)
        raise InputError(f"{path} must name its images in one column out of {', '.join(names)}, got {got}.")
    return found[0]


def read_symmetries(path: Path) -> dict[str, SymmetryGroup]:
    """Class -> group, from a JSON file that need not be there."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
        return {str(label): SymmetryGroup.from_dict(entry) for label, entry in data.items()}
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise InputError(f"{path} must be a JSON dictionary from class to symmetry, got: {error}.") from None
