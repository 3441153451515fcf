"""Our data set on disk: a folder with `dataset.json` and, for each split, numbered shards (docs/data.md describes it).

No torch here: the processes that render import only what they need.
"""

import io
import json
import math
import re
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image

from aquamam import __version__
from aquamam.errors import InputError, require
from aquamam.files import write_bytes, write_json

FORMAT = "aquamam-dataset"
VERSION = 1
MANIFEST = "dataset.json"
ENCODINGS = ("raw", "png")
PNG_LEVEL = 6
RAW_UP_TO = 96  # px; above, an uncompressed image costs more disk than decoding a PNG costs time


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `dataset.json` says: enough to make every byte of the data set again."""

    format: str = FORMAT
    version: int = VERSION
    writer: str = f"aquamam {__version__}"  # another release may draw another pixel
    objects: list[dict[str, Any]]  # name, mesh (its hash), symmetry; example i shows objects[i % len(objects)]
    settings: dict[str, Any]  # of the renderer
    seed: int
    splits: dict[str, int]
    shard_size: int
    encoding: str

    def __post_init__(self) -> None:
        require(self.encoding in ENCODINGS, f"encoding must be one of {', '.join(ENCODINGS)}, got {self.encoding!r}.")
        require(self.shard_size > 0, f"a shard holds at least 1 image, got {self.shard_size}.")
        for split, count in self.splits.items():
            word = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", split) is not None
            require(word, f"a split's name is a word such as train, got {split!r}.")
            require(count > 0, f"a split holds at least 1 image, got {split}={count}.")
        require(len(self.splits) > 0, "a data set needs at least one split, got none; try train=1000.")

    @property
    def image_shape(self) -> tuple[int, int]:
        height, width = np.broadcast_to(self.settings["size"], 2).tolist()
        return height, width

    def shards(self, split: str) -> int:
        return -(-self.splits[split] // self.shard_size)

    def shard_range(self, split: str, shard: int) -> range:
        first = shard * self.shard_size
        return range(first, min(first + self.shard_size, self.splits[split]))

    def files(self, root: Path, split: str, shard: int) -> dict[str, Path]:
        """The files of one shard; the last one is written last, so that its presence means that the shard is whole."""
        endings = {"rotations": "rotations.npy", "images": "images.npy"}
        if self.encoding == "png":
            endings = {"rotations": "rotations.npy", "offsets": "offsets.npy", "images": "tar"}
        return {part: root / split / f"{shard:06d}.{ending}" for part, ending in endings.items()}

    def facts(self) -> dict[str, Any]:
        """What makes this data set another one than its neighbour, by short names.

        Symmetries count by their number only: their last digits may differ from machine to machine.
        """
        groups = [thing["symmetry"] for thing in self.objects]
        return {
            "object": ", ".join(thing["name"] for thing in self.objects),
            "mesh": ", ".join(thing["mesh"][:12] for thing in self.objects),
            "symmetry": [g and f"{len(g['elements'])} x {'axis' if g['axis'] else 'turns'}" for g in groups],
            **{f"settings.{key}": value for key, value in self.settings.items()},
            **{f"splits.{key}": value for key, value in self.splits.items()},
            **{key: getattr(self, key) for key in ("seed", "shard_size", "encoding", "writer")},
        }

    @classmethod
    def read(cls, root: Path) -> "Manifest":
        path = root / MANIFEST
        try:
            data = json.loads(path.read_bytes())
            told = {field.name: data[field.name] for field in fields(cls)}
        except FileNotFoundError:
            raise InputError(f"{root} has no {MANIFEST}, so `aquamam render` did not write it.") from None
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            why = f"{path} is not the whole description of a data set ({error})"
            raise InputError(f"{why}; restore it or render again.") from error
        name = f"{told['format']} {told['version']}"
        known = told["format"] == FORMAT and told["version"] <= VERSION
        require(known, f"{path} has the format {name}, this aquamam reads {FORMAT} {VERSION}; update it.")
        return cls(**told)


def shard_size_for(splits: dict[str, int], encoding: str, image_shape: tuple[int, int]) -> int:
    """Images per shard: few files for large sets, many shards for many workers, little to lose when killed."""
    largest = 2000 if encoding == "png" else 25_000_000 // (3 * math.prod(image_shape))
    return max(1, min(2000, largest, max(50, -(-sum(splits.values()) // 64))))


def is_whole(files: dict[str, Path]) -> bool:
    """Whether a shard is on disk."""
    return all(path.exists() for path in files.values())


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Claim `root` for this data set, or go on with it; refuse a folder that holds anything else."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / MANIFEST).exists():
        if other := [p.name for p in root.iterdir() if not re.fullmatch(r"\..+\.tmp", p.name)]:
            raise InputError(f"{root} is not empty (it holds {min(other)}); choose a new folder for the data set.")
        write_json(root / MANIFEST, asdict(manifest))
    old, new = Manifest.read(root).facts(), manifest.facts()
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            differ = f"{name} is {old.get(name)}, this run asks for {new.get(name)}"
            raise InputError(f"{root} holds another data set ({differ}); choose another folder.")


def write_array(path: Path, array: np.ndarray) -> None:
    """Write the bytes of np.save atomically."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array))
    write_bytes(path, buffer.getbuffer())


def encode_png(image: UInt8[np.ndarray, "h w 3"]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def write_shard(
    root: Path,
    manifest: Manifest,
    task: tuple[str, int],
    images: Sequence[Any],
    rotations: Float64[np.ndarray, "n 4"],
) -> None:
    """Put one finished shard on disk; its images are pixels (3, h, w) for the encoding raw, PNG files for png."""
    paths = manifest.files(root, *task)
    write_array(paths["rotations"], rotations)
    if manifest.encoding == "raw":
        write_array(paths["images"], np.stack(images))
        return
    names, buffer = [thing["name"] for thing in manifest.objects], io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for i, png, q in zip(manifest.shard_range(*task), images, rotations):
            about = json.dumps({"object": names[i % len(names)], "rotation_xyzw": q.tolist()}).encode()
            for ending, content in (("png", png), ("json", about)):
                info = tarfile.TarInfo(f"{i:09d}.{ending}")  # no owner and no date: equal content gives equal bytes
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as archive:
        places = [(member.offset_data, member.size) for member in archive.getmembers()[::2]]
    write_array(paths["offsets"], np.array(places, np.int64))
    write_bytes(paths["images"], buffer.getbuffer())
