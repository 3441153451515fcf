"""Boxes as detectors write them: COCO's results and annotations, BOP's detections, YOLO's text files."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aquamam.errors import InputError, require
from aquamam.geometry.camera import Box


@dataclass(frozen=True, kw_only=True)
class Detection:
    """One box, and what the file says of it."""

    box: Box
    category: int | None = None
    name: str | None = None  # of the category
    score: float = 1.0
    image: int | None = None  # the image's number
    file: str | None = None  # or its name
    scene: int | None = None  # BOP's

    @property
    def labels(self) -> tuple[str, ...]:
        """What a model of this category may be called; BOP names meshes obj_000009."""
        number = () if self.category is None else (f"obj_{self.category:06d}", str(self.category))
        return number if self.name is None else (self.name, *number)


def read_detections(path: Path, size: tuple[int, int] | None = None) -> tuple[list[Detection], list[InputError]]:
    """The boxes of a file, and what is wrong with the rows that tell none. A file is a list of COCO's results or of
    BOP's detections, COCO's annotations, or YOLO's text.

    size: width and height of the one image that a YOLO file tells of.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or 'no text'}).") from None
    if path.suffix == ".txt":
        if size is None:
            raise InputError(f"{path} has boxes in shares of the image, and tells of one image only; give that one.")
        rows = [(k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
        readers = [partial(_yolo, line, f"line {k} of {path}", size) for k, line in rows]
    else:
        names, files = {}, {}
        try:
            told = json.loads(text)
            if isinstance(told, Mapping):
                names = {one.get("id"): one.get("name") for one in told.get("categories", ())}
                files = {one.get("id"): one.get("file_name") for one in told.get("images", ())}
                told = told.get("annotations")
        except (ValueError, RecursionError, TypeError, AttributeError) as error:
            raise InputError(f"{path} must be JSON (COCO, BOP) or end in .txt (YOLO), got: {error}.") from None
        listed = isinstance(told, Sequence)
        require(listed, f"{path} must hold a list of detections, or COCO's images and annotations.")
        readers = [partial(_coco, one, f"detection {k} of {path}", names, files) for k, one in enumerate(told)]
    boxes, wrong = [], []
    for read in readers:
        try:
            boxes.append(read())
        except InputError as error:
            wrong.append(error)
    return boxes, wrong


def _coco(one: Any, where: str, names: Mapping[Any, Any], files: Mapping[Any, Any]) -> Detection:
    try:
        x, y, width, height = map(float, one["bbox"])
        ids = {kind: one.get(f"{kind}_id") for kind in ("category", "image", "scene")}
        file = files.get(ids["image"])
        return Detection(
            box=(x, y, width, height),
            name=names.get(ids["category"]),
            score=float(one.get("score", 1.0)),
            file=None if file is None else Path(file).name,
            **{kind: None if number is None else int(number) for kind, number in ids.items()},
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(f'{where} needs "bbox": [x, y, width, height] and numbers as ids, got: {error}.') from None


def _yolo(line: str, where: str, size: tuple[int, int]) -> Detection:
    try:
        number, x, y, width, height, *score = map(float, line.split())
    except ValueError:
        raise InputError(f"{where} must be: class x y width height [confidence], got {line!r}.") from None
    require(math.isfinite(number), f"{where} must begin with a class, got {line!r}.")
    box = ((x - width / 2) * size[0], (y - height / 2) * size[1], width * size[0], height * size[1])
    return Detection(box=box, category=int(number), score=score[0] if score else 1.0)


def of_image(found: Sequence[Detection], image: Path, *, alone: bool) -> list[Detection]:
    """Those of an image, by its name or the number that its name ends in; alone: it is the only one asked about, and a
    file that tells of no other image tells of it."""
    if alone and len({(one.file, one.image) for one in found}) == 1:
        return list(found)
    digits = image.stem[len(image.stem.rstrip("0123456789")) :]
    number = int(digits) if digits else None
    return [one for one in found if (one.file == image.name if one.file else one.image == number)]
