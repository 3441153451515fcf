"""The modes of a distribution over poses, each as a pose with a score and a covariance: what robots ask for.

Frames: "opengl" is ours (x right, y up, z towards the viewer), "opencv" the optical frame of OpenCV, BOP and ROS
(x right, y down, z forward); they differ by 180 degrees about x.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.camera import check_frame
from aquamam.geometry.rotations import inverse, multiply, opencv_to_opengl, quat_to_matrix, quat_to_rotvec, rotate
from aquamam.posterior.modes import as_tuple, cluster

_FLIP = np.array([1.0, -1.0, -1.0] * 2)  # a translation and a rotation vector from one frame to the other


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """One mode: x_cam = R x_obj + t, in the unit of the part's mesh."""

    quaternion: tuple[float, float, float, float]  # xyzw
    translation: tuple[float, float, float]
    score: float  # share of all probability
    covariance: Float64[np.ndarray, "6 6"]  # about the pose: x, y, z, then the rotation vector, along the camera's axes
    kind: str = "point"  # or "curve" (a continuous symmetry), or "region" when little stands out
    frame: str = "opengl"

    def to_frame(self, frame: str) -> "Hypothesis":
        """The same in another frame of the camera."""
        if check_frame(frame) == self.frame:
            return self
        x, y, z = self.translation
        q = opencv_to_opengl(torch.tensor(self.quaternion, dtype=torch.float64))
        pose: Any = {"quaternion": as_tuple(q), "translation": (x, -y, -z), "frame": frame}
        return replace(self, covariance=self.covariance * np.outer(_FLIP, _FLIP), **pose)

    @property
    def matrix(self) -> Float64[np.ndarray, "3 3"]:
        """The rotation."""
        return quat_to_matrix(torch.tensor(self.quaternion, dtype=torch.float64)).numpy()

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "quaternion_xyzw": [round(x, 7) for x in self.quaternion],
            "translation": [float(f"{x:.7g}") for x in self.translation],
            "score": round(self.score, 4),
            "covariance": [[float(f"{x:.4g}") for x in row] for row in self.covariance],
            "kind": self.kind,
            "frame": self.frame,
        }


def find_hypotheses(
    rotation: Float64[Tensor, "n 4"], translation: Float64[Tensor, "n 3"], centre: Float64[Tensor, "3"]
) -> list[Hypothesis]:
    """One for each mode of the rotations among samples of one picture's poses, best first.

    A mode lies where its rotations are most crowded and the part's centre, in the mesh's coordinates, is on average.
    """
    found = cluster(rotation)
    middle = translation + rotate(rotation, centre)
    hypotheses = []
    for k, mode in enumerate(found.modes):
        members = torch.from_numpy(found.labels == k)
        q = torch.tensor(mode.quaternion, dtype=torch.float64)
        t = middle[members].mean(0) - rotate(q, centre)
        rotated = quat_to_rotvec(multiply(rotation[members], inverse(q)))
        off = torch.cat([translation[members] - t, rotated], -1)
        x, y, z = t.tolist()
        pose: Any = {"quaternion": mode.quaternion, "translation": (x, y, z), "kind": mode.kind}
        hypotheses.append(Hypothesis(**pose, score=mode.share, covariance=(off.T @ off / len(off)).numpy()))
    return sorted(hypotheses, key=lambda one: -one.score)


def to_detection3d(
    found: Sequence[Sequence[Hypothesis]],
    frame_id: str,
    *,
    class_ids: Sequence[str] | None = None,
    metres: float = 1.0,
    radius: float = 0.0,
    stamp: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """The fields of a ROS message vision_msgs/Detection3DArray, as plain values.

    found: the hypotheses of each detected part; the message has them in the optical frame, best score first. metres:
    the length of the mesh's unit. radius: of the parts in that unit, for their boxes. stamp: seconds and nanoseconds.
    """
    names = class_ids or [""] * len(found)
    counts = f"{len(found)} parts and {len(names)} classes"
    require(len(names) == len(found), f"each part needs a class, got {counts}.")
    header = {"stamp": {"sec": stamp[0], "nanosec": stamp[1]}, "frame_id": frame_id}
    detections = []
    for number, (part, name) in enumerate(zip(found, names)):
        ordered = sorted(part, key=lambda one: -one.score)
        results = [_result(one.to_frame("opencv"), name, metres) for one in ordered]
        nowhere = {"position": dict.fromkeys("xyz", 0.0), "orientation": {**dict.fromkeys("xyz", 0.0), "w": 1.0}}
        place, size = results[0]["pose"]["pose"] if results else nowhere, dict.fromkeys("xyz", 2 * radius * metres)
        box = {"center": place, "size": size}
        detections.append({"header": header, "results": results, "bbox": box, "id": str(number)})
    return {"header": header, "detections": detections}


def _result(one: Hypothesis, name: str, metres: float) -> dict[str, Any]:
    """A vision_msgs/ObjectHypothesisWithPose."""
    scale = np.array([metres] * 3 + [1.0] * 3)
    pose = {
        "position": {axis: metres * value for axis, value in zip("xyz", one.translation)},
        "orientation": dict(zip("xyzw", one.quaternion)),
    }
    covariance = (one.covariance * np.outer(scale, scale)).ravel().tolist()
    hypothesis = {"class_id": name, "score": one.score}
    return {"hypothesis": hypothesis, "pose": {"pose": pose, "covariance": covariance}}
