"""A plain folder of images with a CSV of rotations; how a rotation is written is said, never guessed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from aquamam.data.loaders.listed import ListedDataset, choose
from aquamam.data.loaders.tables import Table, numbers, read_table
from aquamam.errors import InputError
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


# how many numbers each kind has, and what makes them canonical xyzw
KINDS: dict[str, tuple[int, Callable[[Tensor, str], Tensor]]] = {
    "xyzw": (4, rot.as_unit_quat),
    "wxyz": (4, lambda values, name: rot.from_wxyz(rot.as_unit_quat(values, name))),
    "matrix": (9, lambda values, name: rot.matrix_to_quat(rot.as_rotation_matrix(values.unflatten(-1, (3, 3)), name))),
    "rotvec": (3, lambda values, name: rot.rotvec_to_quat(values)),
}


class Rotations(NamedTuple):
    quaternions: Float64[Tensor, "rows 4"]
    columns: tuple[str, ...]  # which hold them
    words: str  # and as what


def read_rotations(stated: str, table: Table, path: Path) -> Rotations:
    """As a statement says: wxyz:q0,q1,q2,q3, or euler-YXZ-deg:yaw,pitch,roll, or matrix:R with all in one column.

    Matrices are by rows, rotation vectors in radians; Euler angles are in SciPy's notation.
    """
    kind, _, rest = stated.partition(":")
    columns = tuple(name.strip() for name in rest.split(","))
    if euler := re.fullmatch(r"euler-([xyz]{3}|[XYZ]{3})-(deg|rad)", kind):
        convention, degrees = euler[1], euler[2] == "deg"
        words = f"euler {convention}, {'degrees' if degrees else 'radians'}"
        many, convert = 3, lambda values, name: rot.euler_to_quat(values, convention, degrees=degrees)
    elif kind in KINDS:
        words, (many, convert) = kind, KINDS[kind]
    else:
        kinds = "xyzw, wxyz, matrix, rotvec or euler-YXZ-deg"
        raise InputError(f"rotation must be KIND:COLUMNS, KIND {kinds}, got {stated!r}.")
    choose("columns", columns, list(table), path)
    if len(columns) not in (1, many):
        raise InputError(f"{kind} needs {many} columns, or one with {many} numbers, got {len(columns)}.")
    values = torch.from_numpy(numbers(table, columns, path, many))
    try:
        return Rotations(convert(values, ""), columns, words)
    except InputError:
        for row, value in enumerate(values):  # again one by one, to say which line it is
            convert(value, f"the rotation in line {row + 2} of {path}")
        raise


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
        self.root, self.split, self.size = Path(root), split, size
        files = self._tables(self.root)
        path = next((path for path in files if len(files) == 1 or path.stem == split), None)
        if path is None:
            there = ", ".join(path.name for path in files) or "none"
            raise InputError(f"{root} must have one CSV file or {split}.csv, got {there}; name the file itself.")
        self.folder = path.parent
        table = read_table(path)
        if not next(iter(table.values())):
            raise InputError(f"{path} has no rows below its header; a data set needs at least one.")
        rotations = read_rotations(rotation or find_rotation(table, path), table, path)
        q = rot.inverse(rotations.quaternions) if inverted else rotations.quaternions
        q = rot.opencv_to_opengl(q) if camera == "opencv" else q
        named = [name for name in IMAGE_COLUMNS if name in table]
        if len(named) != 1:
            got = " and ".join(named) if named else ", ".join(table)
            raise InputError(f"{path} must name its images in one column out of {', '.join(IMAGE_COLUMNS)}, got {got}.")
        rows: dict[str, list[int]] = {}
        for row, file in enumerate(table[named[0]]):
            if "split" not in table or split == "all" or table["split"][row] == split or path.stem == split:
                rows.setdefault(file, []).append(row)
        if not rows:
            choose("splits", [split], sorted(set(table["split"])), path)
        self.names = list(rows)
        self.quaternions = [q.numpy()[of_image] for of_image in rows.values()]
        every = next((table[name] for name in CLASS_COLUMNS if name in table), None)
        self.classes = tuple(sorted(set(every))) if every else (self.folder.resolve().name,)
        self.labels = [every[of_image[0]] if every else self.classes[0] for of_image in rows.values()]
        used = {*named, *rotations.columns, *CLASS_COLUMNS, "split"}
        ignored = [name for name in table if name not in used]
        self.about = {
            "rotation": rotations.words,
            "columns": list(rotations.columns),
            "camera": camera,
            "ignored": ignored,
        }
        self._symmetries = read_symmetries(self.folder / "symmetries.json")

    @staticmethod
    def _tables(root: Path) -> list[Path]:
        return [root] if root.suffix == ".csv" else sorted(root.glob("*.csv"))

    @classmethod
    def recognises(cls, root: Path) -> bool:
        return bool(cls._tables(root))

    @classmethod
    def splits(cls, root: Path) -> tuple[str, ...]:
        files = cls._tables(root)
        if len(files) > 1:
            return tuple(path.stem for path in files)
        table = read_table(files[0]) if files else {}
        return ("all", *sorted(set(table.get("split", ()))))

    def source(self, i: int) -> Path:
        return self.folder / self.names[i]

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return self._symmetries.get(label)


def read_symmetries(path: Path) -> dict[str, SymmetryGroup]:
    """Class -> group, from a JSON file that need not be there."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
        return {str(label): SymmetryGroup.from_dict(entry) for label, entry in data.items()}
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise InputError(f"{path} must be a JSON dictionary from class to symmetry, got: {error}.") from None
