"""Open a data set of any known layout."""

import inspect
from pathlib import Path
from typing import Any

from aquamam.data.base import RotationDataset
from aquamam.data.disk.store import StoredDataset
from aquamam.data.loaders.bop import BopDataset
from aquamam.data.loaders.folder import FolderDataset, OriginalDataset
from aquamam.data.loaders.modelnet import ModelNetDataset
from aquamam.data.loaders.pascal3d import PascalDataset
from aquamam.data.loaders.photoreal import PhotorealDataset
from aquamam.data.loaders.symsol import SymsolDataset
from aquamam.errors import InputError, require

# The plain folder comes last: other layouts have CSV files too.
PUBLIC = OriginalDataset, SymsolDataset, ModelNetDataset, PascalDataset, BopDataset
LOADERS: dict[str, Any] = {kind.kind: kind for kind in (StoredDataset, *PUBLIC, PhotorealDataset, FolderDataset)}


def recognise(path: Path, kind: str | None = None) -> Any:
    require(kind is None or kind in LOADERS, f"kind must be one of {', '.join(LOADERS)}, got {kind!r}.")
    require(path.exists(), f"there is no data set at {path}; give its folder, or make one with aquamam render.")
    if kind is not None:
        return LOADERS[kind]
    require(path.suffix != ".zip", f"{path} is an archive; unpack it and give the folder.")
    for loader in LOADERS.values():
        if loader.recognises(path):
            return loader
    raise InputError(f"{path} is not laid out like any known data set ({', '.join(LOADERS)}); docs/data.md shows them.")


def splits_of(path: Path | str, kind: str | None = None) -> tuple[str, ...]:
    """The splits of the data set at `path`."""
    return recognise(Path(path), kind).splits(Path(path))


def open_dataset(
    path: Path | str, split: str | None = None, *, kind: str | None = None, size: int | None = None, **options: Any
) -> RotationDataset:
    """The data set at `path`, its layout recognised unless `kind` names it; `options` are the loader's own.

    Without `split`: train if there is one, else the first. With `size`: images of size x size.
    """
    path = Path(path)
    loader = recognise(path, kind)
    require(size is None or size > 0, f"size must be at least 1 pixel, got {size}.")
    there = loader.splits(path)
    if split is None:
        require(len(there) > 0, f"{path} holds no split of the kind {loader.kind}; docs/data.md shows the layout.")
        split = next((name for name in there if name.startswith("train")), there[0])
    if unknown := sorted(set(options) - set(inspect.signature(loader).parameters)):
        raise InputError(f"a data set of the kind {loader.kind} has no option {unknown[0]}; docs/data.md lists them.")
    return loader(path, split, size=size, **options)
