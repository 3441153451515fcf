"""ModelNet10-SO3 (Liao et al. 2019): JPEG views in LMDB, quaternions in a pickle."""

import io
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aquamam.data.base import ListedDataset, UnreadableExample
from aquamam.errors import InputError, require
from aquamam.geometry.rotations import as_unit_quat, from_wxyz

SUFFIX = ".Rawjpg.lmdb"
QUATERNIONS = "viewID2quat.pkl"
ARRAYS = ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer")  # what pickles of them name
DEFAULTS = {"train": "train_100V", "test": "test_20V"}


class ModelNetDataset(ListedDataset):
    """`SPLIT.Rawjpg.lmdb/` with one JPEG a view id and `viewID2quat.pkl` (wxyz) in it or beside it.

    SPLIT is train_100V, train_20V or test_20V; train and test mean the first and the last. Rotations are taken as they
    are stored; the objects' symmetries are not part of the data.
    """

    kind = "modelnet"
    marks = (f"*{SUFFIX}",)

    def __init__(self, root: Path | str, split: str | None = None, *, size: int | None = None):
        super().__init__(root, DEFAULTS.get(split or "", split), size=size)

    def read(self) -> None:
        self.about = {"rotation": "quaternion wxyz", "camera": "as stored"}
        self.path = self.root / f"{self.split}{SUFFIX}"
        views = read_quaternions(self.path, self.root)
        with database(self.path.resolve()).begin() as transaction:
            stored = {bytes(key).decode() for key in transaction.cursor().iternext(values=False)}
        self.names = sorted(stored & views.keys())
        rule = f"{self.path} must share views with {QUATERNIONS}"
        require(len(self.names) > 0, f"{rule}, got none; the two belong to different splits.")
        q = torch.from_numpy(np.array([views[view] for view in self.names], np.float64))
        self.quaternions = from_wxyz(as_unit_quat(q, f"quaternions of {QUATERNIONS}")).numpy()[:, None]
        self.labels = [view.rpartition("_")[0] for view in self.names]  # night_stand_0012.v003: night_stand
        self.classes = tuple(sorted(set(self.labels)))

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted(path.name.removesuffix(SUFFIX) for path in root.glob(f"*{SUFFIX}")))

    def source(self, i: int) -> bytes:
        with database(self.path.resolve()).begin() as transaction:
            content = transaction.get(self.names[i].encode())
        if content is None:
            raise UnreadableExample(f"view {self.names[i]} is missing from {self.path}; skip unreadable examples.")
        return bytes(content)


@cache
def database(path: Path) -> Any:
    """The open LMDB, which a process may open once."""
    try:
        import lmdb
    except ImportError:
        raise InputError("ModelNet10-SO3 needs the package lmdb; try pip install 'aquamam[lmdb]'.") from None
    try:
        return lmdb.open(str(path), readonly=True, lock=False)
    except lmdb.Error as error:
        raise InputError(f"{path} cannot be opened ({error}); download it again.") from error


class _Arrays(pickle.Unpickler):
    """Unpickles NumPy arrays and plain values only: a data file has no business running code."""

    def find_class(self, module: str, name: str) -> Any:
        array = module.split(".")[0] == "numpy" and name in ARRAYS
        if array or (module, name) == ("_codecs", "encode"):  # how Python 2's bytes are written
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no array")


def read_quaternions(*folders: Path) -> dict[str, Any]:
    """View id -> quaternion (wxyz), from the first folder that has them."""
    path = next((folder / QUATERNIONS for folder in folders if (folder / QUATERNIONS).exists()), None)
    if path is None:
        raise InputError(f"{folders[-1]} has no {QUATERNIONS}, in the .lmdb folder or beside it; download it again.")
    try:
        views = _Arrays(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        if any(np.shape(q) != (4,) for q in views.values()):
            raise ValueError("others than 4 numbers")
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError(f"{path} must be a pickled dictionary of quaternions, got: {error}.") from error
    return {view.decode() if isinstance(view, bytes) else str(view): q for view, q in views.items()}
