"""Cameras as people have them: four numbers, the calibration file of ROS or OpenCV, or BOP's."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from aquamam.errors import InputError, require
from aquamam.geometry.camera import Camera

MATRIX = ("camera_matrix", "Camera_Matrix", "cameraMatrix", "K", "k", "cam_K")  # names of the same thing
DISTORTION = ("distortion_coefficients", "Distortion_Coefficients", "distCoeffs", "dist_coeffs", "D", "d")
PLUMB_BOB = ("plumb_bob", "radtan", "rational_polynomial", "none", "")  # alike as far as k3; beyond, zeros only


class _Loader(yaml.SafeLoader):
    """Reads the matrices that OpenCV tags."""


_Loader.add_constructor(
    "tag:yaml.org,2002:opencv-matrix", lambda loader, node: loader.construct_mapping(node, deep=True)
)


def read_camera(source: str) -> Camera:
    """fx,fy,cx,cy, or a YAML file: ROS's camera_info or OpenCV's FileStorage."""
    if "," in source:
        try:
            fx, fy, cx, cy = map(float, source.split(","))
        except ValueError:
            raise InputError(f"a camera is fx,fy,cx,cy or a calibration file (YAML), got {source!r}.") from None
        return Camera(fx=fx, fy=fy, cx=cx, cy=cy)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8").replace("%YAML:1.0", "", 1)  # OpenCV's own spelling
        values = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path.name} is no YAML file ({str(error).splitlines()[0]}).") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        how = "give fx,fy,cx,cy in pixels, or a calibration file (YAML)"
        raise InputError(f"there is no camera at {source} ({reason}); {how}.") from None
    rule = f"{path.name} must hold named values as ROS and OpenCV write them"
    require(isinstance(values, Mapping), f"{rule}, got {type(values).__name__}.")
    return camera_of(values, path.name)


def camera_of(values: Mapping[str, Any], name: str) -> Camera:
    """The camera that a file's values tell."""
    model = str(values.get("distortion_model") or "")
    rule = "lens distortion must be plumb_bob (k1, k2, p1, p2, k3)"
    require(model in PLUMB_BOB, f"{rule}, got {model!r} in {name}; undistort it first.")
    matrix, distortion = (_numbers(values, names, name) for names in (MATRIX, DISTORTION))
    require(len(matrix) == 9, f"{name} must tell camera_matrix, 9 numbers, got {len(matrix)}.")
    fx, skew, cx, _, fy, cy, *_ = matrix
    require(skew == 0, f"cameras have no skew here, got {skew} in {name}; undistort the image first.")
    while distortion and distortion[-1] == 0:
        distortion.pop()
    return Camera(fx=fx, fy=fy, cx=cx, cy=cy, distortion=tuple(distortion))


def _numbers(values: Mapping[str, Any], names: tuple[str, ...], file: str) -> list[float]:
    found: Any = next((values[name] for name in names if values.get(name) is not None), [])
    data = found.get("data", []) if isinstance(found, Mapping) else found
    try:
        flat = [float(x) for row in data for x in (row if isinstance(row, list) else [row])]
    except (TypeError, ValueError):
        raise InputError(f"{names[0]} of {file} must be numbers, alone or in rows.") from None
    require(all(map(math.isfinite, flat)), f"{names[0]} of {file} must be finite, got {flat}.")
    return flat
