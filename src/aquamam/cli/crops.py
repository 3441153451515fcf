"""Boxes, cameras and several parts' models as options of commands."""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aquamam.cli.options import load_model
from aquamam.errors import InputError

if TYPE_CHECKING:
    from aquamam.data.detections import Detection
    from aquamam.geometry.camera import Box, Camera


def box(text: str) -> "Box":
    """Left, top, width and height of a box in pixels."""
    try:
        left, top, width, height = map(float, text.split(","))
    except ValueError:
        raise InputError(f"must be left,top,width,height in pixels, got {text!r}; try 120,80,64,48") from None
    return left, top, width, height


def camera_of(args: argparse.Namespace) -> "Camera | None":
    """The camera that a command was given."""
    from aquamam.data.cameras import read_camera

    return None if args.camera is None else read_camera(args.camera)


def add_crop_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--box", type=box, metavar="X,Y,W,H", help="of the part in the image: left, top, width, height in pixels")
    intrinsics = "fx,fy,cx,cy in pixels, or a calibration file of ROS or OpenCV (YAML)"
    option("--camera", metavar="CAMERA", help=intrinsics)


class Models:
    """One model for all boxes, or a folder of parts, each loaded when its first box comes."""

    def __init__(self, args: argparse.Namespace):
        self._args = args
        self._loaded: dict[str, Any] = {}
        folder = getattr(args, "models", None)
        if folder is not None and not folder.is_dir():
            raise InputError(f"--models must be a folder of fitted parts, and there is none at {folder}.")
        inside = [] if folder is None else sorted(folder.iterdir())
        found = [path for path in inside if path.suffix == ".safetensors" or (path / "model.safetensors").is_file()]
        self.paths = {path.stem: path for path in found}
        if folder is not None and not found:
            raise InputError(f"--models must be a folder of fitted parts, and {folder} holds none.")

    def name(self, one: "Detection") -> str:
        """The name of a detection's model."""
        if not self.paths:
            return self._args.model
        if not one.labels and len(self.paths) == 1:
            return next(iter(self.paths))
        if (found := next((label for label in one.labels if label in self.paths), None)) is not None:
            return found
        wanted = " or ".join(one.labels[:2]) or "a box without a category"
        raise InputError(f"there is no model for {wanted} in {self._args.models}, only {', '.join(self.paths)}.")

    def __call__(self, name: str) -> Any:
        if name not in self._loaded:
            source = str(self.paths.get(name, name))
            self._loaded[name] = load_model(source, self._args.device, getattr(self._args, "engine", "torch"))
        return self._loaded[name]


class Row(NamedTuple):
    """A box to answer."""

    path: Path
    image: Any
    box: "Detection"
    camera: "Camera | None"


class Rows:
    """The boxes that a command was given, image by image; whatever is wrong with one costs a sentence."""

    def __init__(self, args: argparse.Namespace):
        from aquamam.network.images import find_images

        if args.box is not None and args.detections is not None:
            raise InputError("--box and --detections both tell boxes; give one of them.")
        self.args, self.camera, self.models = args, camera_of(args), Models(args)
        self.paths = find_images(args.images)
        self.status = 0  # of the command: 2 if something was wrong

    def wrong(self, where: object, error: Exception) -> None:
        from tqdm import tqdm

        self.status = 2
        tqdm.write(f"aquamam: {where}: {error}", file=sys.stderr)

    def detections(self, size: tuple[int, int] | None = None) -> "list[Detection]":
        """The file's boxes, its bad rows told."""
        from aquamam.data.detections import read_detections

        found = read_detections(self.args.detections, size)
        for error in found.wrong:
            self.wrong(self.args.detections.name, error)
        return found.boxes

    def __iter__(self) -> Iterator[Row]:
        from aquamam.data.detections import Detection, of_image
        from aquamam.network.images import read_image

        told, alone = None, len(self.paths) == 1
        for path in self.paths:
            try:
                image = read_image(path)
            except InputError as error:
                self.wrong(path, error)
                continue
            if self.args.box is not None:
                boxes = [Detection(box=self.args.box)]
            else:
                told = self.detections(image.size if alone else None) if told is None else told
                boxes = of_image(told, path, alone=alone)
            yield from (Row(path, image, one, self.camera) for one in boxes)

    def records(self) -> Iterator[tuple[Row, dict[str, Any]]]:
        """One for each box that could be answered."""
        from aquamam.cli.options import generator_for
        from aquamam.network.poses import look

        args = self.args
        for row in self:
            try:
                name = self.models.name(row.box)
                model = self.models(name)
                seen = look(model, row.image, row.box.box, row.camera, args.frame)
                told = seen.to_dict(
                    args.samples,
                    strategy=args.strategy,
                    symmetry=model.symmetry,
                    matrix=args.matrix,
                    generator=generator_for(model, args.seed),
                )
            except InputError as error:
                self.wrong(row.path, error)
                continue
            about = {"image": str(row.path), "box": list(row.box.box), "model": name, "detection": row.box.score}
            yield row, about | told


class BopRows(Rows):
    """The boxes of a BOP data set's split: a file's detections, or else those of what is visible of its instances."""

    def __init__(self, args: argparse.Namespace):
        given = [name for name in ("images", "box", "camera") if getattr(args, name)]
        if given:
            raise InputError(f"--bop takes images, boxes and cameras from the data set; drop {given[0]}.")
        if args.out is None:
            raise InputError("--bop writes BOP's result file; name it with --out, for example --out result.csv.")
        self.args, self.models, self.status, self.unknown = args, Models(args), 0, set[int]()
        args.frame, args.matrix = "opencv", True
        self.scenes = sorted(path.parent for path in (args.bop / args.split).glob("*/scene_camera.json"))
        if not self.scenes:
            raise InputError(f"{args.bop} must hold BOP scenes, and {args.split}/*/scene_camera.json is not there.")

    def __iter__(self) -> Iterator[Row]:
        from aquamam.data.loaders.bop import picture_of, read_cameras
        from aquamam.network.images import read_image

        boxes = self.truths() if self.args.detections is None else self.detections()
        for scene in self.scenes:
            cameras = read_cameras(scene)
            for number, camera in sorted(cameras.items()):
                mine = [one for one in boxes if (one.scene, one.image) == (int(scene.name), number) and self.known(one)]
                path = picture_of(scene, number)
                try:
                    image = read_image(path) if mine else None
                except InputError as error:
                    self.wrong(path, error)
                    continue
                yield from (Row(path, image, one, camera) for one in mine)

    def truths(self) -> "list[Detection]":
        from aquamam.data.detections import Detection
        from aquamam.data.loaders.bop import read_instances

        instances = [one for scene in self.scenes for one in read_instances(scene)]
        found = [
            Detection(box=one.box, category=one.object, image=one.image, scene=int(one.scene))
            for one in instances
            if one.visible >= self.args.min_visible
        ]
        return [one for one in found if set(one.labels) & set(self.models.paths)]  # not every object has a model

    def known(self, one: "Detection") -> bool:
        """Whether there is a model; an object without costs one sentence, however many boxes it has."""
        try:
            self.models.name(one)
            return True
        except InputError as error:
            if one.category not in self.unknown:
                self.wrong(self.args.detections, error)
                self.unknown.add(one.category or -1)
            return False

    def write(self) -> int:
        """Answer all boxes and write the result file; returns how many there are."""
        import numpy as np

        from aquamam.evaluation.bop import Motion, Result, write_results
        from aquamam.network.poses import METRES

        results: list[Result] = []
        seconds: dict[tuple[int, int], float] = defaultdict(float)
        start = time.perf_counter()
        for row, told in self.records():
            place = int(row.path.parents[1].name), int(row.path.stem)
            seconds[place] += time.perf_counter() - start
            start = time.perf_counter()
            if "translation" not in told or row.box.category is None:
                self.wrong(row.path, InputError(f"{told['model']} tells no pose; fit the part with this version."))
                continue
            sure = told["hypotheses"][0]["score"] if told.get("hypotheses") else 1.0
            millimetres = 1000 * METRES.get(told["unit"], 0.001)
            pose = Motion(np.array(told["matrix"]), millimetres * np.array(told["translation"]))
            results.append(Result(*place, row.box.category, row.box.score * sure, pose, 0.0))
        times = [one._replace(seconds=seconds[one.scene, one.image]) for one in results]
        write_results(times, self.args.out)
        return len(times)
