"""Boxes, cameras and several parts' models as options of commands."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    def __iter__(self) -> Iterator[tuple[Path, Any, "Detection"]]:
        """Path, image and box."""
        from aquamam.data.detections import Detection, of_image, read_detections
        from aquamam.network.images import read_image

        told = None
        for path in self.paths:
            try:
                image = read_image(path)
                if self.args.box is not None:
                    boxes = [Detection(box=self.args.box)]
                else:
                    alone = len(self.paths) == 1
                    if told is None:
                        told = read_detections(self.args.detections, image.size if alone else None)
                        for error in told.wrong:
                            self.wrong(self.args.detections.name, error)
                    boxes = of_image(told.boxes, path, alone=alone)
            except InputError as error:
                if told is None and self.args.box is None:
                    raise  # without boxes there is nothing to do
                self.wrong(path, error)
                continue
            yield from ((path, image, one) for one in boxes)

    def records(self) -> Iterator[dict[str, Any]]:
        """One for each box that could be answered."""
        from aquamam.cli.options import generator_for
        from aquamam.network.poses import look

        args = self.args
        for path, image, one in self:
            try:
                name = self.models.name(one)
                model = self.models(name)
                seen = look(model, image, one.box, self.camera, args.frame)
                told = seen.to_dict(
                    args.samples,
                    strategy=args.strategy,
                    symmetry=model.symmetry,
                    matrix=args.matrix,
                    generator=generator_for(model, args.seed),
                )
            except InputError as error:
                self.wrong(path, error)
                continue
            yield {"image": str(path), "box": list(one.box), "model": name, "detection": one.score, **told}
