"""Answers about boxes in pictures: of one part or of a folder of them, or for all of a BOP data set."""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from aquamam.cli.main import Pictures, load_model
from aquamam.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from aquamam.data.detections import Detection
    from aquamam.geometry.camera import Camera


class Models:
    """One model for all boxes, or a folder of parts, each loaded when its first box comes."""

    def __init__(self, args: argparse.Namespace):
        self.args, folder = args, args.models
        inside = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
        found = [path for path in inside if path.suffix == ".safetensors" or (path / "model.safetensors").is_file()]
        if folder is not None and not found:
            raise InputError(f"--models must be a folder of fitted parts, and there are none in {folder}.")
        self.paths = {path.stem: str(path) for path in found}
        self.load = cache(self._load)

    def _load(self, name: str) -> Any:
        return load_model(self.paths.get(name, name), self.args.device, self.args.engine)

    def name(self, one: "Detection") -> str:
        """The name of a detection's model."""
        if not self.paths:
            return self.args.model
        if not one.labels and len(self.paths) == 1:
            return next(iter(self.paths))
        if (found := next((label for label in one.labels if label in self.paths), None)) is not None:
            return found
        wanted = " or ".join(one.labels[:2]) or "a box without a category"
        raise InputError(f"there is no model for {wanted} in {self.args.models}, only {', '.join(self.paths)}.")


class Row(NamedTuple):
    """A box to answer."""

    path: "Path"
    image: Any
    box: "Detection"
    camera: "Camera | None"


def answer_boxes(args: argparse.Namespace, pictures: Pictures) -> Iterator[dict[str, Any]]:
    """A record for each box that could be answered."""
    return (told for _, told in answered(args, boxes_of(args, pictures), Models(args), pictures))


def answered(
    args: argparse.Namespace, rows: Iterable[Row], models: Models, pictures: Pictures
) -> Iterator[tuple[Row, dict[str, Any]]]:
    from aquamam.network.poses import look

    for row in rows:
        try:
            name = models.name(row.box)
            model = models.load(name)
            drawn = {"generator": model.generator(args.seed), "strategy": args.strategy, "symmetry": model.symmetry}
            seen = look(model, row.image, row.box.box, row.camera, args.frame)
            told = seen.to_dict(args.samples, matrix=args.matrix, **drawn)
        except InputError as error:
            pictures.wrong(f"{row.path}: {error}")
            continue
        about = {"image": str(row.path), "box": list(row.box.box), "model": name, "detection": row.box.score}
        yield row, about | told


def boxes_of(args: argparse.Namespace, pictures: Pictures) -> Iterator[Row]:
    """The box of each picture, or those of a detector's file."""
    from aquamam.data.cameras import read_camera
    from aquamam.data.detections import Detection, of_image

    camera, alone = args.camera and read_camera(args.camera), len(pictures.paths) == 1
    told = None if args.box is None else [Detection(box=args.box)]
    for path, image in pictures:
        if told is None:
            told = detections(args, pictures, image.size if alone else None)
        mine = told if args.box is not None else of_image(told, path, alone=alone)
        yield from (Row(path, image, one, camera) for one in mine)


def detections(args: argparse.Namespace, pictures: Pictures, size: tuple[int, int] | None = None) -> "list[Detection]":
    """The file's boxes, its bad rows told."""
    from aquamam.data.detections import read_detections

    boxes, wrong = read_detections(args.detections, size)
    for error in wrong:
        pictures.wrong(f"{args.detections.name}: {error}")
    return boxes


# --- BOP --------------------------------------------------------------------------------------------------------------


def write_bop(args: argparse.Namespace) -> int:
    """Answer the boxes of a BOP data set's split and write the result file."""
    import numpy as np

    from aquamam.evaluation.bop import Motion, Result, write_results
    from aquamam.network.poses import METRES

    if given := next((name for name in ("images", "box", "camera") if getattr(args, name)), None):
        raise InputError(f"--bop takes images, boxes and cameras from the data set; drop {given}.")
    for name, what in (("models", "a folder of fitted parts"), ("out", "a result file to write")):
        if getattr(args, name) is None:
            raise InputError(f"--bop needs {what}; name it with --{name}.")
    args.frame, args.matrix = "opencv", True
    models, pictures = Models(args), Pictures([])
    results: list[Result] = []
    seconds: dict[tuple[int, int], float] = defaultdict(float)
    start = time.perf_counter()
    for row, told in answered(args, bop_boxes(args, models, pictures), models, pictures):
        place = int(row.path.parents[1].name), int(row.path.stem)
        seconds[place] += time.perf_counter() - start
        start = time.perf_counter()
        if "translation" not in told or row.box.category is None:
            pictures.wrong(f"{row.path}: {told['model']} tells no pose; fit the part with this version.")
            continue
        sure = told["hypotheses"][0]["score"] if told.get("hypotheses") else 1.0
        millimetres = 1000 * METRES.get(told["unit"], 0.001)
        pose = Motion(np.array(told["matrix"]), millimetres * np.array(told["translation"]))
        results.append(Result(*place, row.box.category, row.box.score * sure, pose, 0.0))
    timed = (one._replace(seconds=seconds[one.scene, one.image]) for one in results)
    results = list(pictures.together(timed))
    if not pictures.rank:
        write_results(results, args.out)
        print(f"{args.out}: {len(results)} poses")
    return pictures.status


def bop_boxes(args: argparse.Namespace, models: Models, pictures: Pictures) -> Iterator[Row]:
    """A file's detections, or else the boxes of what is visible of the data set's instances; not every object has a
    model, and a detected one without costs one sentence, however many boxes it has."""
    from aquamam.data.detections import Detection
    from aquamam.data.loaders.bop import picture_of, read_cameras, read_instances

    scenes = sorted(path.parent for path in (args.bop / args.split).glob("*/scene_camera.json"))
    if not scenes:
        raise InputError(f"{args.bop} must hold BOP scenes, and {args.split}/*/scene_camera.json is not there.")
    if args.detections is None:
        visible = [one for scene in scenes for one in read_instances(scene) if one.visible >= args.min_visible]
        found = [Detection(box=o.box, category=o.object, image=o.image, scene=int(o.scene)) for o in visible]
    else:
        found = detections(args, pictures)
    known = [one for one in found if set(one.labels) & models.paths.keys()]
    if args.detections is not None:
        for one in {one.category: one for one in found if one not in known}.values():
            pictures.wrong(f"{args.detections}: there is no model for {' or '.join(one.labels)} in {args.models}.")
    views = [(scene, number, camera) for scene in scenes for number, camera in sorted(read_cameras(scene).items())]
    for scene, number, camera in pictures.mine(views):
        mine = [one for one in known if (one.scene, one.image) == (int(scene.name), number)]
        path = picture_of(scene, number)
        image = pictures.read(path) if mine else None
        yield from (Row(path, image, one, camera) for one in mine if image is not None)
