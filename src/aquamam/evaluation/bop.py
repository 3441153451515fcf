"""BOP's result files and metrics (Hodan et al. 2020): whole poses in OpenCV's camera and millimetres.

MSSD is the largest distance of a vertex, MSPD the largest distance of a projected one, each of the symmetry of the
object that makes it smallest; ADD is the mean distance, ADD-S of symmetric objects that to the nearest vertex. A pose
is right below a threshold: of MSSD 0.05, 0.1, ..., 0.5 diameters, of MSPD 5, 10, ..., 50 pixels in an image 640 wide,
of ADD 0.1 diameters. Average recalls (AR) are means over thresholds.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from PIL import Image
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from aquamam.data.base import choose
from aquamam.data.loaders.bop import Instance, label_of, picture_of, read_infos, read_instances
from aquamam.errors import InputError, require
from aquamam.files import write_text
from aquamam.geometry.camera import Camera
from aquamam.rendering.meshes import load_mesh

HEADER = "scene_id,im_id,obj_id,score,R,t,time"
STEP = 0.01  # continuous symmetries: no vertex moves by more of the diameter
DIAMETERS = np.arange(1, 11) * 0.05
PIXELS = np.arange(1, 11) * 5.0
ADD_DIAMETERS = 0.1

Points = Float64[np.ndarray, "n 3"]


class Motion(NamedTuple):
    """x -> R x + t."""

    R: Float64[np.ndarray, "3 3"]
    t: Float64[np.ndarray, "3"]

    def __call__(self, points: Points) -> Points:
        return points @ self.R.T + self.t

    def after(self, first: "Motion") -> "Motion":
        """This motion after another one."""
        return Motion(self.R @ first.R, self.R @ first.t + self.t)


def symmetry_motions(info: Mapping[str, Any]) -> list[Motion]:
    """An object's symmetries as models_info.json tells them, the identity first, offsets and all; continuous ones in
    steps of 0.01 diameters."""
    try:
        told = [np.array(matrix, float).reshape(4, 4) for matrix in info.get("symmetries_discrete", ())]
        spun = info.get("symmetries_continuous", ())
        lines = [(np.array(one["axis"], float), np.array(one.get("offset", (0, 0, 0)), float)) for one in spun]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"symmetries of models_info.json must be BOP's format, got: {error}.") from error
    found = [Motion(np.eye(3), np.zeros(3)), *(Motion(m[:3, :3], m[:3, 3]) for m in told)]
    steps = math.ceil(math.pi / STEP)  # the farthest vertex is at most half a diameter from the axis
    for axis, offset in lines:
        angles = np.arange(steps) * (2 * math.pi / steps)
        matrices = Rotation.from_rotvec(angles[:, None] * axis / np.linalg.norm(axis)).as_matrix()
        found = [Motion(R, offset - R @ offset).after(other) for other in found for R in matrices]
    return found


def mssd(points: Points, estimate: Motion, truth: Motion, symmetries: Sequence[Motion]) -> float:
    """Maximum symmetry-aware surface distance."""
    there = estimate(points)
    return min(float(np.linalg.norm(there - truth.after(s)(points), axis=1).max()) for s in symmetries)


def mspd(points: Points, camera: Camera, estimate: Motion, truth: Motion, symmetries: Sequence[Motion]) -> float:
    """Maximum symmetry-aware projection distance, in pixels."""
    there = camera.pixels(estimate(points))
    return min(float(np.linalg.norm(there - camera.pixels(truth.after(s)(points)), axis=1).max()) for s in symmetries)


def add(points: Points, estimate: Motion, truth: Motion) -> float:
    """Average distance of vertices."""
    return float(np.linalg.norm(estimate(points) - truth(points), axis=1).mean())


def add_s(points: Points, estimate: Motion, truth: Motion) -> float:
    """Average distance from the true vertices to the nearest estimated ones."""
    return float(cKDTree(estimate(points)).query(truth(points))[0].mean())


class Result(NamedTuple):
    """One row of a result file."""

    scene: int
    image: int
    object: int
    score: float
    pose: Motion
    seconds: float  # of the whole image; -1 if not known


def write_results(results: Iterable[Result], path: Path) -> None:
    """A result file as BOP's tools read it."""
    lines = [HEADER]
    for one in results:
        R, t = (" ".join(f"{x:.8g}" for x in values.ravel()) for values in one.pose)
        lines.append(f"{one.scene},{one.image},{one.object},{one.score:.6g},{R},{t},{one.seconds:.6g}")
    write_text(path, "\n".join(lines) + "\n")


def read_results(path: Path) -> list[Result]:
    """The rows of a result file, held to the rules of BOP's tools."""
    results = []
    seconds: dict[tuple[int, int], float] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or (number == 1 and line.replace(" ", "") == HEADER):
            continue
        try:
            scene, image, thing, score, R, t, time = line.split(",")
            pose = Motion(np.array(R.split(), float).reshape(3, 3), np.array(t.split(), float).reshape(3))
            one = Result(int(scene), int(image), int(thing), float(score), pose, float(time))
            require(all(np.isfinite(values).all() for values in (*pose, one.score)), "numbers that are not finite")
        except ValueError as error:
            raise InputError(f"line {number} of {path} must be {HEADER}, R nine numbers, t three: {error}.") from None
        same = seconds.setdefault((one.scene, one.image), one.seconds) == one.seconds
        require(same, f"line {number} of {path} has another time than its image had before; they must be equal.")
        results.append(one)
    return results


# Of the estimates (rows, best score first) of an object in an image against its instances there: MSSD in diameters,
# MSPD in pixels of an image 640 wide, ADD (of symmetric objects ADD-S) in diameters.
Errors = Float64[np.ndarray, "3 _estimates _truths"]


@dataclass(frozen=True, kw_only=True)
class Recalls:
    """Shares of instances that were found."""

    instances: int
    mssd: float  # average over thresholds
    mspd: float
    add: float  # within 0.1 diameters
    mssd_20: float  # within 0.2 diameters
    mspd_20: float  # within 20 pixels

    @classmethod
    def of(cls, errors: Sequence[Errors]) -> "Recalls":
        count = sum(one.shape[2] for one in errors)
        mssd, mspd, add = (
            [sum(matched(one[i], threshold) for one in errors) / max(count, 1) for threshold in thresholds]
            for i, thresholds in enumerate(((*DIAMETERS, 0.2), (*PIXELS, 20.0), (ADD_DIAMETERS,)))
        )
        averages = {"mssd": float(np.mean(mssd[:-1])), "mspd": float(np.mean(mspd[:-1]))}
        return cls(instances=count, **averages, add=add[0], mssd_20=mssd[-1], mspd_20=mspd[-1])

    @classmethod
    def mean(cls, parts: Sequence["Recalls"]) -> "Recalls":
        """Of objects, each counting alike."""
        values: dict[str, Any] = {name: float(np.mean([getattr(p, name) for p in parts])) for name in asdict(parts[0])}
        return cls(**{**values, "instances": sum(p.instances for p in parts)})


def matched(errors: Float64[np.ndarray, "estimates truths"], threshold: float) -> int:
    """How many instances are found: each estimate, best score first, takes the nearest that is free."""
    free = np.ones(errors.shape[1], bool)
    for row in errors:
        left = np.where(free, row, np.inf)
        if left.size and left.min() < threshold:
            free[left.argmin()] = False
    return int((~free).sum())


def judge(
    root: Path,
    results: Sequence[Result],
    split: str = "test",
    *,
    objects: Sequence[int] | None = None,
    min_visible: float = 0.1,
) -> dict[int, Recalls]:
    """The recalls of each object; without `objects` of those that the results name."""
    wanted = sorted(set(objects or (one.object for one in results)))
    scenes = sorted(path.parent for path in (root / split).glob("*/scene_gt.json"))
    instances = [one for scene in scenes for one in read_instances(scene)]
    choose("objects", wanted, sorted({one.object for one in instances}), f"split {split} of {root}")
    targets = None
    if (path := root / "test_targets_bop19.json").is_file() and split.startswith("test"):
        targets = {(one["scene_id"], one["im_id"], one["obj_id"]) for one in json.loads(path.read_text())}
    truths, estimates = defaultdict(list), defaultdict(list)  # of an object in an image
    for one in instances:
        key = int(one.scene), one.image, one.object
        if one.visible >= min_visible and (targets is None or key in targets):
            truths[key].append(one)
    for result in results:
        estimates[result.scene, result.image, result.object].append(result)
    infos, found = read_infos(root), {}
    for number in wanted:
        shape, errors = read_shape(root, number, infos.get(label_of(number), {})), []
        for key, there in truths.items():
            if key[2] == number:
                with Image.open(picture_of(root / split / there[0].scene, there[0].image)) as picture:
                    errors.append(pose_errors(shape, there, estimates[key], picture.width / 640))
        found[number] = Recalls.of(errors)
    return found


class Shape(NamedTuple):
    """What the metrics need of an object."""

    points: Points
    diameter: float
    symmetries: list[Motion]


def read_shape(root: Path, number: int, info: Mapping[str, Any]) -> Shape:
    """An object's mesh and its entry in models_info.json."""
    files = [root / folder / f"{label_of(number)}.ply" for folder in ("models_eval", "models")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise InputError(f"BOP's metrics need the mesh of object {number}, and there is none at {files[1]}.")
    require("diameter" in info, f"models_info.json of {root} must tell the diameter of object {number}.")
    points = load_mesh(file, scale=1.0, center=False, untextured=True).vertices
    return Shape(np.unique(points, axis=0), float(info["diameter"]), symmetry_motions(info))


def pose_errors(shape: Shape, truths: Sequence[Instance], estimates: Sequence[Result], scale: float) -> Errors:
    """scale: the image's width in 640 pixels. As many estimates count as there are instances."""
    points, diameter, symmetries = shape
    best = sorted(estimates, key=lambda one: -one.score)[: len(truths)]
    errors = np.empty((3, len(best), len(truths)))
    distance = add_s if len(symmetries) > 1 else add
    for i, one in enumerate(best):
        for j, truth in enumerate(truths):
            true = Motion(np.reshape(truth.R, (3, 3)), np.array(truth.t))
            surface = mssd(points, one.pose, true, symmetries) / diameter
            projected = mspd(points, truth.camera, one.pose, true, symmetries) / scale
            errors[:, i, j] = surface, projected, distance(points, one.pose, true) / diameter
    return errors
