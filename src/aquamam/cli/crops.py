"""Answers about boxes in pictures: of one part or of a folder of them, or for all of a BOP data set."""

import argparse
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from aquamam.cli.main import Pictures, load_model
from aquamam.data.cameras import read_camera
from aquamam.data.detections import Detection, of_image, read_detections
from aquamam.data.loaders.bop import picture_of, read_cameras, read_instances
from aquamam.errors import InputError, require
from aquamam.evaluation.bop import Motion, Result, write_results
from aquamam.geometry.camera import Camera
from aquamam.network.poses import METRES, look


class Models:
    """One model for all boxes, or a folder of parts, each loaded when its first box comes."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.paths = args, dict[str, str]()
        if args.models is not None:
            folders = [file.parent for file in args.models.glob("*/model.safetensors")]
            self.paths = {path.stem: str(path) for path in sorted([*args.models.glob("*.safetensors"), *folders])}
            told = f"--models must be a folder of fitted parts, and there are none in {args.models}."
            require(bool(self.paths), told)
        self.load = cache(lambda source: load_model(source, args.device, args.engine))

    def name(self, box: Detection) -> str:
        """The name of a box's model."""
        if not self.paths:
            return self.args.model
        if not box.labels and len(self.paths) == 1:
            return next(iter(self.paths))
        if (found := next((label for label in box.labels if label in self.paths), None)) is not None:
            return found
        wanted = " or ".join(box.labels[:2]) or "a box without a category"
        raise InputError(f"there is no model for {wanted} in {self.args.models}, only {', '.join(self.paths)}.")

    def answer(self, image: Any, box: Detection, camera: Camera | None) -> dict[str, Any]:
        """The record of a box, but for its picture's name."""
        args, name = self.args, self.name(box)
        model = self.load(self.paths.get(name, name))
        drawn = {"generator": model.generator(args.seed), "strategy": args.strategy, "symmetry": model.symmetry}
        told = look(model, image, box.box, camera, args.frame).to_dict(args.samples, matrix=args.matrix, **drawn)
        return {"box": list(box.box), "model": name, "detection": box.score, **told}


def answer_boxes(args: argparse.Namespace, pictures: Pictures) -> Iterator[dict[str, Any]]:
    """A record for each box that could be answered: the box of every picture, or those of a detector's file."""
    models, camera = Models(args), args.camera and read_camera(args.camera)
    told, alone = None if args.box is None else [Detection(box=args.box)], len(pictures.paths) == 1
    for path, image in pictures:
        if told is None:
            told = detections(args, pictures, image.size if alone else None)
        for box in told if args.box is not None else of_image(told, path, alone=alone):
            try:
                yield {"image": str(path), **models.answer(image, box, camera)}
            except InputError as error:
                pictures.wrong(f"{path}: {error}")


def detections(args: argparse.Namespace, pictures: Pictures, size: tuple[int, int] | None = None) -> list[Detection]:
    """The file's boxes, its bad rows told."""
    boxes, wrong = read_detections(args.detections, size)
    for error in wrong:
        pictures.wrong(f"{args.detections.name}: {error}")
    return boxes


# --- BOP --------------------------------------------------------------------------------------------------------------


def write_bop(args: argparse.Namespace) -> int:
    """Answer the boxes of a BOP data set's split and write the result file."""
    for name in ("images", "box", "camera"):
        require(not getattr(args, name), f"--bop takes images, boxes and cameras from the data set; drop {name}.")
    for name, what in (("models", "a folder of fitted parts"), ("out", "a result file to write")):
        require(getattr(args, name) is not None, f"--bop needs {what}; name it with --{name}.")
    args.frame, args.matrix = "opencv", True
    scenes = sorted(path.parent for path in (args.bop / args.split).glob("*/scene_camera.json"))
    told = f"{args.bop} must hold BOP scenes, and {args.split}/*/scene_camera.json is not there."
    require(len(scenes) > 0, told)
    models, pictures = Models(args), Pictures([])
    if args.detections is None:  # the boxes of what is visible of the data set's instances
        visible = [one for scene in scenes for one in read_instances(scene) if one.visible >= args.min_visible]
        boxes = [Detection(box=o.box, category=o.object, image=o.image, scene=int(o.scene)) for o in visible]
    else:
        boxes = detections(args, pictures)
    known = [one for one in boxes if set(one.labels) & models.paths.keys()]
    if args.detections is not None:  # one sentence a category, however many boxes it has
        for one in {one.category: one for one in boxes if not set(one.labels) & models.paths.keys()}.values():
            pictures.wrong(f"{args.detections}: there is no model for {' or '.join(one.labels)} in {args.models}.")
    views = [(scene, number, camera) for scene in scenes for number, camera in sorted(read_cameras(scene).items())]
    found = (one for view in pictures.mine(views) for one in answer_view(*view, known, models, pictures))
    results = list(pictures.together(found))
    if not pictures.rank:
        write_results(results, args.out)
        print(f"{args.out}: {len(results)} poses")
    return pictures.status


def answer_view(
    scene: Path, number: int, camera: Camera, boxes: list[Detection], models: Models, pictures: Pictures
) -> list[Result]:
    """The poses in the boxes of a picture, and how long they took."""
    path, start, found = picture_of(scene, number), time.perf_counter(), []
    mine = [box for box in boxes if (box.scene, box.image) == (int(scene.name), number)]
    image = pictures.read(path) if mine else None
    for box in mine if image is not None else ():
        try:
            told = models.answer(image, box, camera)
            if "translation" not in told or box.category is None:
                raise InputError(f"{told['model']} tells no pose; fit the part with this version.")
        except InputError as error:
            pictures.wrong(f"{path}: {error}")
            continue
        sure = told["hypotheses"][0]["score"] if told.get("hypotheses") else 1.0
        millimetres = 1000 * METRES.get(told["unit"], 0.001)
        pose = Motion(np.array(told["matrix"]), millimetres * np.array(told["translation"]))
        found.append(Result(int(scene.name), number, box.category, box.score * sure, pose, 0.0))
    return [one._replace(seconds=time.perf_counter() - start) for one in found]
