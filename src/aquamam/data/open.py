"""Open a data set of any known layout."""

import inspect
from pathlib import Path
from typing import Any

from aquamam.data.base import DiskDataset
from aquamam.data.disk.store import StoredDataset
from aquamam.data.loaders.bop import BopDataset
from aquamam.data.loaders.folder import FolderDataset, OriginalDataset
from aquamam.data.loaders.modelnet import ModelNetDataset
from aquamam.data.loaders.pascal3d import PascalDataset
from aquamam.data.loaders.photoreal import PhotorealDataset
from aquamam.data.loaders.symsol import SymsolDataset
from aquamam.errors import InputError, require

KNOWN = (StoredDataset, OriginalDataset, SymsolDataset, ModelNetDataset, PascalDataset, BopDataset, PhotorealDataset)
# The plain folder comes last: other layouts have CSV files too.
LOADERS: dict[str, type[DiskDataset]] = {loader.kind: loader for loader in (*KNOWN, FolderDataset)}


def recognise(path: Path, kind: str | None = None) -> type[DiskDataset]:
    """The loader of the data set at `path`: that of this kind, else the one whose marks are there."""
    require(kind is None or kind in LOADERS, f"kind must be one of {', '.join(LOADERS)}, got {kind!r}.")
    require(path.exists(), f"there is no data set at {path}; give its folder, or make one with aquamam render.")
    if kind is not None:
        return LOADERS[kind]
    require(path.suffix != ".zip", f"{path} is an archive; unpack it and give the folder.")
    if path.suffix == ".csv":
        return FolderDataset
    for loader in LOADERS.values():
        if all(any(path.glob(mark)) for mark in loader.marks):
            return loader
    raise InputError(f"{path} is not laid out like any known data set ({', '.join(LOADERS)}); docs/data.md shows them.")


def splits_of(path: Path | str, kind: str | None = None) -> tuple[str, ...]:
    """The splits of the data set at `path`."""
    return recognise(Path(path), kind).splits(Path(path))


def open_dataset(
    path: Path | str, split: str | None = None, *, kind: str | None = None, size: int | None = None, **options: Any
) -> DiskDataset:
    """The data set at `path`, its layout recognised unless `kind` names it; `options` are the loader's own.

    Without `split`: train if there is one, else the first. With `size`: images of size x size.
    """
    loader = recognise(Path(path), kind)
    require(size is None or size > 0, f"size must be at least 1 pixel, got {size}.")
    if unknown := sorted(set(options) - set(inspect.signature(loader.read).parameters)):
        raise InputError(f"a data set of the kind {loader.kind} has no option {unknown[0]}; docs/data.md lists them.")
    return loader(path, split, size=size, **options)
