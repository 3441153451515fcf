"""BOP data sets (Hodan et al. 2018): crops of known objects in scenes, with rotations and symmetries."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from PIL import Image
from torch import Tensor

from aquamam.data.base import Batch, ListedDataset, UnreadableExample, choose, decode_image
from aquamam.data.cameras import camera_of
from aquamam.errors import InputError
from aquamam.geometry.camera import MARGIN, Box, Camera, crop_camera, cut
from aquamam.geometry.rotations import as_rotation_matrix, inverse, matrix_to_quat, multiply, opencv_to_opengl
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.poses import Part
from aquamam.posterior.poses import CropFrames, Pose

IMAGES = (("rgb", ".png"), ("rgb", ".jpg"), ("gray", ".png"), ("gray", ".tif"), ("gray", ".jpg"))
ORTHOGONAL = 0.01  # Linemod-Occluded has rotations that are off by 0.0022


class Instance(NamedTuple):
    """One object in one image, as the files say it (OpenCV camera, millimetres)."""

    scene: str
    image: int
    object: int
    R: tuple[float, ...]
    t: tuple[float, float, float]
    box: Box  # of what is visible
    camera: Camera
    visible: float


class BopDataset(ListedDataset):
    """`SPLIT/SCENE/` with scene_gt.json, scene_gt_info.json, scene_camera.json and rgb/, and `models/models_info.json`.

    One example for each visible instance: the crop of its visible box (`geometry.camera.cut`), the rotation that the
    crop shows, relative to a camera that looks at the part's centre, and where the part lies in it. Without
    `allocentric`, rotations are those of the whole image's camera. Cameras are ours, OpenCV's being converted.
    """

    kind = "bop"
    marks = ("*/*/scene_gt.json",)

    def read(
        self,
        *,
        objects: Sequence[int] | None = None,
        allocentric: bool = True,
        min_visible: float = 0.1,
        part: Part | None = None,
    ) -> None:
        """part: the one that the objects are, else told by models_info.json; without either there are no windows."""
        self.allocentric = allocentric
        self.about = {"camera": "opencv, converted to opengl", "allocentric": allocentric, "crop_margin": MARGIN}
        scenes = sorted(path.parent for path in (self.root / self.split).glob("*/scene_gt.json"))
        found = [one for scene in scenes for one in read_instances(scene) if one.visible >= min_visible]
        choose("objects", objects or (), sorted({one.object for one in found}), f"split {self.split} of {self.root}")
        self.instances = [one for one in found if objects is None or one.object in objects]
        self.names = [f"{self.split}/{one.scene}/{one.image:06d}:{one.object}" for one in self.instances]
        self.labels = [label_of(one.object) for one in self.instances]
        self.classes = tuple(sorted(set(self.labels)))
        self._infos = read_infos(self.root)
        told = {label: part or told_part(self._infos.get(label, {})) for label in self.classes}
        self._parts = {label: one for label, one in told.items() if one is not None}
        R = np.array([one.R for one in self.instances], np.float64).reshape(-1, 3, 3)
        q = matrix_to_quat(as_rotation_matrix(torch.from_numpy(R), f"cam_R_m2c of {self.root}", ORTHOGONAL))
        t = torch.tensor([one.t for one in self.instances], dtype=torch.float64).reshape(-1, 3)
        self.poses = Pose(opencv_to_opengl(q), t * t.new_tensor([1.0, -1.0, -1.0]))

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return tuple(sorted({path.parents[1].name for path in root.glob("*/*/scene_gt.json")}))

    def source(self, i: int) -> Path:
        return picture_of(self.root / self.split / self.instances[i].scene, self.instances[i].image)

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return SymmetryGroup.from_bop(self._infos[label]) if label in self._infos else None

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        one = self.instances[i]
        whole = decode_image(self.source(i), self.names[i])
        size = self.size or max(1, round(MARGIN * max(one.box[2:])))
        try:
            return np.asarray(cut(Image.fromarray(whole), one.box, size, one.camera)[0])
        except InputError as error:  # the box lies outside the image
            raise UnreadableExample(f"image {self.names[i]} cannot be cut: {error}") from error

    def shown(self, i: int) -> tuple[Float64[Tensor, "4"], Float64[Tensor, "3"]]:
        """The rotation (xyzw) and the window that crop i shows."""
        one, part = self.instances[i], self._parts.get(self.labels[i], Part(radius=1.0))
        frames = CropFrames([crop_camera(one.box, one.camera)], radius=part.radius, centre=part.centre)
        q, window = frames.to_window(Pose(*(value[i, None] for value in self.poses)))
        return q[0], window[0]

    def rotations(self, i: int) -> Float64[np.ndarray, "1 4"]:
        return (self.shown(i)[0] if self.allocentric else self.poses.rotation[i]).numpy()[None]

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        batch = super().batch(indices, unreadable=unreadable)
        if not all(label in self._parts for label in batch.labels):
            return batch
        windows = [self.shown(i)[1] for i in batch.indices]
        return replace(batch, windows=torch.stack(windows).float() if windows else torch.zeros(0, 3))

    def egocentric(self, i: int, q: Float64[Tensor, "*batch 4"]) -> Float64[Tensor, "*batch 4"]:
        """From the rotations that crop i shows to object-to-camera rotations of the whole image (xyzw, our camera)."""
        return multiply(multiply(self.poses.rotation[i], inverse(self.shown(i)[0])), q)


def picture_of(scene: Path, image: int) -> Path:
    """The file of a scene's image, or what it would be called."""
    files = [scene / folder / f"{image:06d}{end}" for folder, end in IMAGES]
    return next((file for file in files if file.exists()), files[0])


def label_of(object_id: int) -> str:
    """As BOP names the model's file."""
    return f"obj_{object_id:06d}"


def told_part(info: dict[str, Any]) -> Part | None:
    """Centre of the box and half the diameter that models_info.json tells of an object."""
    try:
        x, y, z = (float(info[f"min_{axis}"]) + float(info[f"size_{axis}"]) / 2 for axis in "xyz")
        return Part(radius=float(info["diameter"]) / 2, centre=(x, y, z))
    except KeyError:
        return None


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; a BOP scene needs it, so download the data again.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a JSON file, got: {error}; download it again.") from None


def read_cameras(scene: Path) -> dict[int, Camera]:
    """The camera of each image of a scene."""
    path = scene / "scene_camera.json"
    try:
        return {int(image): camera_of(told, f"image {image} of {path}") for image, told in read_json(path).items()}
    except (AttributeError, TypeError) as error:
        raise InputError(f"{path} must be BOP's format, got: {error}.") from error


def read_instances(scene: Path) -> Iterator[Instance]:
    """The annotated objects of a scene."""
    truths, infos = read_json(scene / "scene_gt.json"), read_json(scene / "scene_gt_info.json")
    cameras = read_cameras(scene)
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
                    box=(left, top, width, height),
                    camera=cameras[int(image)],
                    visible=float(info.get("visib_fract", 1.0)),
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{scene}/scene_gt.json and scene_gt_info.json must be BOP's format, got: {error}.") from error


def read_infos(root: Path) -> dict[str, Any]:
    """What models_info.json says of each object, symmetries among it; an object listed without any has none."""
    files = sorted(root.glob("models*/models_info.json"))  # that of models itself first
    return {label_of(int(number)): info for number, info in read_json(files[0]).items()} if files else {}
