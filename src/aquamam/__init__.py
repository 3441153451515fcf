"""Distributions over 3D rotations given an image."""

import os
import sys
from importlib import import_module

__version__ = "0.1.0"

# OpenMP's threads spin while they wait for each other, so beside other work they burn the time that the others of their
# own team need, and everything is many times slower (benchmarks/busy.py). The setting is read when torch is loaded, and
# a user's own one wins.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Public names and their homes. They are imported on first use, so that `import aquamam` and `aquamam --help` cost
# nothing.
_HOMES: dict[str, str] = {
    "AQuaMaM": "network.model",
    "Camera": "geometry.camera",
    "InputError": "errors",
    "ModelConfig": "network.model",
    "PoseTracker": "posterior.pose_fusion",
    "Tracker": "posterior.tracking",
    "calibrate": "training.calibrate",
    "fuse": "posterior.fusion",
    "fuse_poses": "posterior.pose_fusion",
    "import_original": "checkpoints.original",
    "load": "export.runner",
    "poses": "network.poses",
    "save_model": "checkpoints.checkpoint",
    "within": "posterior.maps",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(import_module(f"aquamam.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'aquamam' has no attribute {name!r}; public names are {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted(__all__)
