"""Distributions over 3D rotations given an image."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# OpenMP's threads spin while they wait for each other, so beside other work they burn the time that the others of their
# own team need, and everything is many times slower (benchmarks/busy.py): they shall wait asleep, after a moment where
# that can be said. The settings are read when torch is loaded, and a user's own ones win.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
if "torch" not in sys.modules and not WAITING.keys() & os.environ.keys():
    os.environ.update(WAITING)

# Public names and their homes. They are imported on first use, so that `import aquamam` and `aquamam --help` cost
# nothing.
_HOMES: dict[str, str] = {
    "AQuaMaM": "network.model",
    "Camera": "geometry.camera",
    "InputError": "errors",
    "ModelConfig": "network.model",
    "PoseTracker": "posterior.tracking",
    "Tracker": "posterior.tracking",
    "calibrate": "training.calibrate",
    "fuse": "posterior.fusion",
    "fuse_poses": "posterior.tracking",
    "import_original": "checkpoints.original",
    "load": "export.runner",
    "poses": "network.poses",
    "save_model": "checkpoints.checkpoint",
    "within": "posterior.maps",
}

__all__ = ["__version__", *sorted(_HOMES)]


if TYPE_CHECKING:  # the same for type checkers, which then know of misspelt names, too
    from aquamam.checkpoints.checkpoint import save_model as save_model
    from aquamam.checkpoints.original import import_original as import_original
    from aquamam.errors import InputError as InputError
    from aquamam.export.runner import load as load
    from aquamam.geometry.camera import Camera as Camera
    from aquamam.network.model import AQuaMaM as AQuaMaM
    from aquamam.network.model import ModelConfig as ModelConfig
    from aquamam.network.poses import poses as poses
    from aquamam.posterior.fusion import fuse as fuse
    from aquamam.posterior.maps import within as within
    from aquamam.posterior.tracking import PoseTracker as PoseTracker
    from aquamam.posterior.tracking import Tracker as Tracker
    from aquamam.posterior.tracking import fuse_poses as fuse_poses
    from aquamam.training.calibrate import calibrate as calibrate
else:

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(f"aquamam.{_HOMES[name]}"), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module 'aquamam' has no attribute {name!r}; public names are {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted(__all__)
