"""Poses of the part that a model knows, from a box in a picture and its camera."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from aquamam.errors import InputError, require
from aquamam.geometry.camera import Camera, Crop, check_frame, cut
from aquamam.geometry.rotations import inverse, multiply, opencv_to_opengl
from aquamam.network.images import to_rgb
from aquamam.network.model import RotationModel
from aquamam.posterior.answers import answers
from aquamam.posterior.distribution import Generator, Rotated, RotationDistribution
from aquamam.posterior.poses import PoseDistribution

METRES = {"mm": 0.001, "cm": 0.01, "m": 1.0}  # of a mesh's units


@dataclass(frozen=True, kw_only=True)
class Part:
    """The smallest sphere about its centre that holds a part, in the unit and coordinates of its mesh's file."""

    radius: float
    centre: tuple[float, float, float] = (0.0, 0.0, 0.0)
    unit: str = ""  # of the file, where somebody said it

    def __post_init__(self) -> None:
        good = 0 < self.radius < math.inf and len(self.centre) == 3 and all(map(math.isfinite, self.centre))
        came = f"{self.radius} and {self.centre}"
        require(good, f"a part has a positive radius and a centre of three numbers, got {came}.")


def part_of(model: Any) -> Part | None:
    """What a model's description says of its part's size; None if it says nothing."""
    told = (getattr(model, "info", None) or {}).get("part")
    if not isinstance(told, Mapping) or not {"radius", "scale"} & told.keys():
        return None
    try:
        # fits of version 0.1 tell the scale that makes the radius sqrt(3)
        radius = float(told["radius"]) if "radius" in told else math.sqrt(3) / float(told["scale"])
        x, y, z = map(float, told.get("centre", (0.0, 0.0, 0.0)))
        return Part(radius=radius, centre=(x, y, z), unit=str(told.get("unit") or ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"the model's description of its part is damaged ({error}); fit the part again.") from error


def poses(
    model: RotationModel,
    image: Image.Image | Sequence[Image.Image],
    box: Sequence[Any],
    camera: Camera | Sequence[Camera],
    *,
    part: Part | None = None,
) -> PoseDistribution:
    """The distribution over poses of the model's part in each box (left, top, width, height in pixels).

    One image, box or camera serves for all others. Translations are in the unit of the part's mesh, from the camera to
    the mesh's origin; part: its size, where the model does not tell it or it was scaled.
    """
    part = part or part_of(model)
    tells = getattr(model.config, "pose", False)
    require(tells, "this model tells rotations only; fit the part with this version to have poses.")
    if part is None:
        raise InputError("a pose needs the part's size, which this model does not tell; give part=Part(radius=...).")
    boxes = list(box) if len(box) and np.ndim(box[0]) == 1 else [box]
    images = [image] if isinstance(image, Image.Image) else list(image)
    cameras = [camera] if isinstance(camera, Camera) else list(camera)
    count, size = max(len(boxes), len(images), len(cameras)), model.config.image_size
    for values in (images, boxes, cameras):
        number = len(values)
        fits = number in (1, count)
        require(fits, f"images, boxes and cameras are as many, or one for all, got {number} for {count}.")
    each = zip(*(values * (count if len(values) == 1 else 1) for values in (images, boxes, cameras)))
    cuts = [cut(to_rgb(one), about, size, seen) for one, about, seen in each]
    with torch.no_grad():
        rotation = model([picture for picture, _ in cuts])
    return PoseDistribution(rotation, [crop for _, crop in cuts], radius=part.radius, centre=part.centre)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sighting:
    """What a model says of a box in a picture, in the frame of the whole picture's camera."""

    crop: Image.Image
    rotation: Rotated
    poses: PoseDistribution | None  # where the camera and the part's size are known, by a model that tells poses
    part: Part | None
    frame: str

    def translation(self, q: Sequence[float]) -> tuple[float, float, float] | None:
        """The likeliest one of a rotation (xyzw) in this frame."""
        if self.poses is None:
            return None
        shown = multiply(inverse(self.rotation.by), torch.tensor([q], dtype=torch.float64))
        x, y, z = self.poses.at(shown).translation[0].tolist()
        return (x, y, z) if self.frame == "opengl" else (x, -y, -z)

    def to_dict(
        self, samples: int = 1000, *, matrix: bool = False, generator: Generator = None, **options: Any
    ) -> dict[str, Any]:
        """The answer as plain values for JSON: the rotation's, and the translation and hypotheses of poses; options
        are those of `answers`."""
        (answer,) = answers(self.rotation, samples, generator=generator, **options)
        return answer.to_dict(matrix=matrix) | self.place(answer.quaternion, samples, generator)

    def place(self, q: Sequence[float], samples: int, generator: Generator) -> dict[str, Any]:
        """Frame, the translation of a rotation (xyzw), and the hypotheses of so many samples, as plain values."""
        told: dict[str, Any] = {"frame": self.frame}
        if self.poses is not None and self.part is not None:
            told |= {"translation": self.translation(q), "unit": self.part.unit or "that of the mesh"}
            if samples:
                (found,) = self.poses.hypotheses(samples, generator=generator)
                told["hypotheses"] = [one.to_frame(self.frame).to_dict() for one in found]
        return told


def look(
    model: RotationModel,
    image: Image.Image,
    box: Sequence[float | int],
    camera: Camera | None = None,
    frame: str = "opengl",
) -> Sighting:
    """What any model says of a box: its posterior, rotated by the ray to the part, or to the box's middle where no pose
    is told; without a camera it is as if it had looked at the box."""
    picture, crop = cut(to_rgb(image), box, model.config.image_size, camera)
    with torch.no_grad():
        rotation = model([picture])
    return sighted(model, rotation, picture, crop, camera is not None, frame)


def sighted(
    model: RotationModel, rotation: RotationDistribution, picture: Image.Image, crop: Crop, known: bool, frame: str
) -> Sighting:
    """What a model's posterior of a crop says in the frame of the whole camera; known: whether that is."""
    part, found, ray = part_of(model), None, crop.turn[None]
    if known and part is not None and getattr(model.config, "pose", False):
        found = PoseDistribution(rotation, [crop], radius=part.radius, centre=part.centre)
        ray = multiply(found.mode.rotation, inverse(rotation.mode.cpu().double()))
    if check_frame(frame) == "opencv":
        ray = opencv_to_opengl(ray)
    return Sighting(crop=picture, rotation=Rotated(rotation, ray), poses=found, part=part, frame=frame)
