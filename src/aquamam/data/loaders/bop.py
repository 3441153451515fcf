"""BOP data sets (Hodan et al. 2018): crops of known objects in scenes, with rotations and symmetries."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from aquamam.data.base import Box
from aquamam.data.loaders.listed import ListedDataset, choose
from aquamam.errors import InputError
from aquamam.geometry.rotations import (
    as_rotation_matrix,
    inverse,
    matrix_to_quat,
    multiply,
    opencv_to_opengl,
    rotvec_to_quat,
)
from aquamam.geometry.symmetry import SymmetryGroup

IMAGES = (("rgb", ".png"), ("rgb", ".jpg"), ("gray", ".png"), ("gray", ".tif"), ("gray", ".jpg"))


class Instance(NamedTuple):
    """One object in one image, as the files say it (OpenCV camera, millimetres)."""

    scene: str
    image: int
    object: int
    R: tuple[float, ...]
    t: tuple[float, float, float]
    box: Box
    visible: float


class BopDataset(ListedDataset):
    """`SPLIT/SCENE/` with scene_gt.json, scene_gt_info.json and rgb/, and `models/models_info.json`.

    One example for each visible instance, cropped to a square. Rotations are taken from OpenCV's camera to ours.
    With `allocentric`, they are those that the crop shows, as if the camera had looked straight at the object;
    `egocentric` takes them back.
    """

    kind = "bop"

    def __init__(
        self,
        root: Path | str,
        split: str = "train",
        *,
        size: int | None = None,
        objects: Sequence[int] | None = None,
        allocentric: bool = False,
        min_visible: float = 0.1,
        margin: float = 1.2,
    ):
        super().__init__(root, split, size)
        self.allocentric, self.margin = allocentric, margin
        scenes = sorted(path.parent for path in (self.root / split).glob("*/scene_gt.json"))
        found = [one for scene in scenes for one in read_instances(scene) if one.visible >= min_visible]
        choose("objects", objects or (), sorted({one.object for one in found}), f"split {split} of {root}")
        self.instances = [one for one in found if objects is None or one.object in objects]
        self.names = [f"{split}/{one.scene}/{one.image:06d}:{one.object}" for one in self.instances]
        self.labels = [label_of(one.object) for one in self.instances]
        self.boxes = [one.box for one in self.instances]
        self.classes = tuple(sorted(set(self.labels)))
        R = np.array([one.R for one in self.instances], np.float64).reshape(-1, 3, 3)
        q = matrix_to_quat(as_rotation_matrix(torch.from_numpy(R), f"cam_R_m2c of {root}"))
        t = torch.tensor([one.t for one in self.instances], dtype=torch.float64).reshape(-1, 3)
        self._rays = opencv_to_opengl(multiply(ray_rotation(t), opencv_to_opengl(q.new_tensor([0, 0, 0, 1]))))
        seen = multiply(inverse(ray_rotation(t)), q) if allocentric else q
        self.quaternions = opencv_to_opengl(seen).numpy()[:, None]
        self._infos = read_infos(self.root)

    @staticmethod
    def recognises(root: Path) -> bool:
        return any(root.glob("*/*/scene_gt.json"))

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted({path.parents[1].name for path in root.glob("*/*/scene_gt.json")}))

    def source(self, i: int) -> Path:
        one = self.instances[i]
        files = [self.root / self.split / one.scene / folder / f"{one.image:06d}{end}" for folder, end in IMAGES]
        return next((file for file in files if file.exists()), files[0])

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return SymmetryGroup.from_bop(self._infos[label]) if label in self._infos else None

    def egocentric(self, i: int, q: Float64[torch.Tensor, "*batch 4"]) -> Float64[torch.Tensor, "*batch 4"]:
        """From the rotations that crop i shows to object-to-camera rotations of the whole image (xyzw, our camera)."""
        return multiply(self._rays[i], q)

    def describe(self) -> dict[str, Any]:
        return {"camera": "opencv, turned to opengl", "allocentric": self.allocentric, "crop_margin": self.margin}


def label_of(object_id: int) -> str:
    """As BOP names the model's file."""
    return f"obj_{object_id:06d}"


def ray_rotation(t: Float64[torch.Tensor, "n 3"]) -> Float64[torch.Tensor, "n 4"]:
    """The smallest rotation (xyzw, OpenCV camera) that takes the optical axis to the ray through t."""
    d = t / torch.linalg.vector_norm(t, dim=-1, keepdim=True)
    axis = torch.stack([-d[:, 1], d[:, 0], torch.zeros_like(d[:, 0])], -1)  # z x d
    sine = torch.linalg.vector_norm(axis, dim=-1, keepdim=True)
    angle = torch.atan2(sine, d[:, 2:])
    return rotvec_to_quat(axis / sine.clamp_min(1e-300) * angle)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; a BOP scene needs it, so download the data again.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a JSON file, got: {error}; download it again.") from None


def read_instances(scene: Path) -> Iterator[Instance]:
    """The annotated objects of a scene."""
    truths, infos = read_json(scene / "scene_gt.json"), read_json(scene / "scene_gt_info.json")
    try:
        for image, objects in sorted(truths.items(), key=lambda item: int(item[0])):
            for truth, info in zip(objects, infos[image], strict=True):
                left, top, width, height = map(float, info["bbox_visib"])
                if width <= 0 or height <= 0:  # not in the picture
                    continue
                x, y, z = map(float, truth["cam_t_m2c"])
                R = tuple(map(float, truth["cam_R_m2c"]))
                if len(R) != 9 or z <= 0:
                    raise ValueError(f"image {image}: a rotation of {len(R)} numbers, or an object behind the camera")
                yield Instance(
                    scene=scene.name,
                    image=int(image),
                    object=int(truth["obj_id"]),
                    R=R,
                    t=(x, y, z),
                    box=(left, top, left + width, top + height),
                    visible=float(info.get("visib_fract", 1.0)),
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{scene}/scene_gt.json and scene_gt_info.json must be BOP's format, got: {error}.") from error


def read_infos(root: Path) -> dict[str, Any]:
    """What models_info.json says of each object, symmetries among it; an object listed without any has none."""
    folders = [root / "models", *sorted(root.glob("models*"))]
    path = next((f / "models_info.json" for f in folders if (f / "models_info.json").exists()), None)
    return {} if path is None else {label_of(int(number)): info for number, info in read_json(path).items()}
