"""ModelNet10-SO3 (Liao et al. 2019): JPEG views in LMDB, quaternions in a pickle."""

import io
import os
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, UInt8

from aquamam.data.base import RotationDataset, UnreadableExample, decode_image
from aquamam.errors import InputError
from aquamam.geometry.rotations import as_unit_quat, from_wxyz

SUFFIX = ".Rawjpg.lmdb"
QUATERNIONS = "viewID2quat.pkl"
DEFAULTS = {"train": "train_100V", "test": "test_20V"}


class ModelNetDataset(RotationDataset):
    """`SPLIT.Rawjpg.lmdb/` with one JPEG a view id and `viewID2quat.pkl` (wxyz) in it or beside it.

    SPLIT is train_100V, train_20V or test_20V; train and test mean the first and the last. Rotations are taken as they
    are stored; the objects' symmetries are not part of the data.
    """

    kind = "modelnet"

    def __init__(self, root: Path | str, split: str = "train", *, size: int | None = None):
        self.root, self.split, self.size = Path(root), DEFAULTS.get(split, split), size
        self.path = self.root / f"{self.split}{SUFFIX}"
        if not self.path.is_dir():
            raise InputError(f"{root} has the splits {', '.join(self.splits(self.root))}, not {split!r}; choose one.")
        views = read_views(
            next((p for p in (self.path / QUATERNIONS, self.root / QUATERNIONS) if p.exists()), None), root
        )
        with database(self.path.resolve(), os.getpid()).begin() as transaction:
            stored = {bytes(key).decode() for key in transaction.cursor().iternext(values=False)}
        self.views = sorted(stored & views.keys())
        if not self.views:
            raise InputError(f"{self.path} shares no view with {QUATERNIONS}; the two belong to different splits.")
        quaternions = np.array([views[view] for view in self.views], np.float64).reshape(len(self.views), 4)
        checked = as_unit_quat(torch.from_numpy(quaternions), f"quaternions of {QUATERNIONS}")
        self._rotations = from_wxyz(checked).numpy()
        self.classes = tuple(sorted({class_of(view) for view in self.views}))

    @staticmethod
    def recognises(root: Path) -> bool:
        return any(root.glob(f"*{SUFFIX}"))

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted(path.name.removesuffix(SUFFIX) for path in root.glob(f"*{SUFFIX}")))

    def __len__(self) -> int:
        return len(self.views)

    def label(self, i: int) -> str:
        return class_of(self.views[i])

    def name(self, i: int) -> str:
        return self.views[i]

    def rotations(self, i: int) -> Float64[np.ndarray, "1 4"]:
        return self._rotations[i : i + 1]

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        with database(self.path.resolve(), os.getpid()).begin() as transaction:
            content = transaction.get(self.views[i].encode())
        if content is None:
            raise UnreadableExample(f"view {self.views[i]} is missing from {self.path}; skip unreadable examples.")
        return decode_image(bytes(content), self.views[i], self.size)

    def describe(self) -> dict[str, Any]:
        return {"rotation": "quaternion wxyz", "camera": "as stored"}


@cache
def database(path: Path, process: int) -> Any:
    """The open LMDB: a process may open it once, and not use one that its parent opened."""
    try:
        import lmdb
    except ImportError:
        raise InputError("ModelNet10-SO3 needs the package lmdb; try pip install 'aquamam[lmdb]'.") from None
    try:
        return lmdb.open(str(path), readonly=True, lock=False)
    except lmdb.Error as error:
        raise InputError(f"{path} cannot be opened ({error}); download it again.") from error


def class_of(view: str) -> str:
    """night_stand_0012.v003 -> night_stand."""
    return view.rpartition("_")[0]


class _Arrays(pickle.Unpickler):
    """Unpickles NumPy arrays and plain values only: a data file has no business running code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"):
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 2's bytes are written
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no array")


def read_views(path: Path | None, root: Path | str) -> dict[str, Any]:
    """View id -> quaternion (wxyz)."""
    if path is None:
        raise InputError(f"{root} has no {QUATERNIONS}, neither in the .lmdb folder nor beside it; download it again.")
    try:
        views = _Arrays(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError(f"{path} must be a pickled dictionary of quaternions, got: {error}.") from error
    if not isinstance(views, dict) or any(np.shape(q) != (4,) for q in views.values()):
        raise InputError(f"{path} must be a pickled dictionary of quaternions (4 numbers each); download it again.")
    return {view.decode() if isinstance(view, bytes) else str(view): q for view, q in views.items()}
