"""Data sets: our own on disk or rendered on the fly, and loaders for everyone else's."""

from importlib import import_module

# Imported on first use: the processes that render need no torch, and no loader needs another's dependencies.
_HOMES: dict[str, str] = {
    "RotationDataset": "base",
    "UnreadableExample": "base",
    "StoredDataset": "disk.store",
    "RenderedDataset": "renders",
    "PhotoDataset": "photos",
    "Stream": "stream",
    "one_pass": "stream",
    "AugmentSettings": "augment",
    "augmentation": "augment",
    "open_dataset": "open",
    "PhotorealDataset": "loaders.photoreal",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f"aquamam.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'aquamam.data' has no attribute {name!r}; it has {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return __all__
