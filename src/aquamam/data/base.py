"""What every data set promises: images, one or many true rotations, a class, and symmetries where they are known; and
what loaders share: a list of images with classes and rotations, in a split of a folder."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, UInt8
from PIL import Image
from torch import Tensor

from aquamam.errors import InputError, require
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.images import BROKEN, fit_to, to_rgb


class UnreadableExample(InputError):
    """An image of a data set is missing or damaged; training may skip and count it."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One image and what is true of it; `rotations` are canonical xyzw quaternions, entry 0 the one in the picture."""

    image: UInt8[np.ndarray, "h w 3"]
    rotations: Float64[np.ndarray, "equivalents 4"]
    label: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples ready for a model; `rotations` are canonical xyzw quaternions.

    Where examples have different numbers of true rotations, `counts` says how many are real and the rest repeat them.
    """

    images: UInt8[Tensor, "batch 3 h w"]
    rotations: Float[Tensor, "batch equivalents 4"]
    counts: Int64[Tensor, " batch"]
    labels: tuple[str, ...]
    indices: tuple[int, ...]
    windows: Float[Tensor, "batch 3"] | None = None  # where the object lies in each crop (`posterior.windows`)
    unreadable: tuple[str, ...] = ()  # what `unreadable="skip"` left out, each with its reason

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        if torch.device(device).type == "mps":  # it has no float64
            tensors["rotations"] = self.rotations.float()
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


class RotationDataset:
    """Random access to examples; a subclass says `image` and `rotations` of example i, and `label` unless classes
    alternate."""

    kind: str = ""  # the layout's name, as `aquamam data inspect` prints it
    split: str = ""
    classes: tuple[str, ...] = ()
    symmetries: Mapping[str, SymmetryGroup | None] = {}  # of classes, where they are known
    size: int | None = None  # images are resized to size x size; None leaves them alone
    endless: bool = False  # an endless data set has an example for every non-negative index
    about: Mapping[str, Any] = {}  # where it came from, and how it writes rotations; plain JSON values

    def __len__(self) -> int:
        raise NotImplementedError

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        raise NotImplementedError

    def rotations(self, i: int) -> Float64[np.ndarray, "equivalents 4"]:
        raise NotImplementedError

    def label(self, i: int) -> str:
        return self.classes[i % len(self.classes)]

    def name(self, i: int) -> str:
        return f"{self.split}/{i}"

    def symmetry(self, label: str) -> SymmetryGroup | None:
        return self.symmetries.get(label)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width, or None when images differ; a subclass that knows without looking says so."""
        return None if self.size is None else (self.size, self.size)

    def describe(self) -> dict[str, Any]:
        """What this data set says about itself."""
        return dict(self.about)

    def __getitem__(self, i: int) -> Example:
        i = self._position(i)
        return Example(image=self.image(i), rotations=self.rotations(i), label=self.label(i), name=self.name(i))

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        """Examples `indices` as tensors; `unreadable="skip"` leaves damaged images out and names them."""
        kept, images, lost = [], [], []
        for i in map(self._position, indices):
            try:
                images.append(self.image(i))
                kept.append(i)
            except UnreadableExample as error:
                if unreadable == "raise":
                    raise
                lost.append(str(error))
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            seen = " and ".join(f"{h}x{w}" for h, w, _ in sorted(shapes)[:2])
            raise InputError(f"images of a batch must have one size, got {seen}; open the data set with a size.")
        pixels = np.stack(images) if images else np.empty((0, *(self.image_size or (0, 0)), 3), np.uint8)
        return self._collate(kept, pixels, [self.rotations(i) for i in kept], lost)

    def _collate(
        self,
        indices: list[int],
        images: UInt8[np.ndarray, "n h w 3"],
        rotations: Sequence[Float64[np.ndarray, "_ 4"]],
        unreadable: Sequence[str] = (),
    ) -> Batch:
        counts = np.array([len(r) for r in rotations], np.int64)
        most = int(counts.max(initial=1))
        padded = [r[np.arange(most) % len(r)] for r in rotations]  # each repeated from its start
        return Batch(
            images=torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))),
            rotations=torch.from_numpy(np.stack(padded) if padded else np.empty((0, most, 4))),
            counts=torch.from_numpy(counts),
            labels=tuple(map(self.label, indices)),
            indices=tuple(indices),
            unreadable=tuple(unreadable),
        )

    def _position(self, i: int) -> int:
        """As in a list: negative indices count from the end."""
        return int(i) if self.endless else range(len(self))[i]


def decode_image(source: bytes | Path, name: str, size: int | None = None) -> UInt8[np.ndarray, "h w 3"]:
    """An image file's pixels as RGB, resized if asked; anything wrong with it is an UnreadableExample."""
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
            if size is not None:
                file.draft("RGB", (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
            image = to_rgb(file)
            return np.asarray(image if size is None else fit_to(image, (size, size)))
    except FileNotFoundError as error:
        raise UnreadableExample(f"image {name} is missing; restore it, or skip unreadable examples.") from error
    except (Image.DecompressionBombError, *BROKEN) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise UnreadableExample(
            f"image {name} cannot be read ({reason}); replace it, or skip such examples."
        ) from error


def fit_pixels(pixels: UInt8[np.ndarray, "h w 3"], size: int | None) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Resize to size x size just as prediction does."""
    if size is None or pixels.shape[:2] == (size, size):
        return pixels
    return np.asarray(fit_to(Image.fromarray(np.ascontiguousarray(pixels)), (size, size)))


class DiskDataset(RotationDataset):
    """One split of a data set on disk. A subclass says how its layout is recognised and which splits there are, and
    reads one in `read`, whose options are those of the layout."""

    marks: tuple[str, ...]  # patterns of paths, all of which match where this layout lies
    read: Callable[..., None]

    def __init__(self, root: Path | str, split: str | None = None, *, size: int | None = None, **options: Any):
        """Without `split`: train if there is one, else the first."""
        self.root, self.size = Path(root), size
        there = self.splits(self.root)
        require(len(there) > 0, f"{root} holds no split of the kind {self.kind}; docs/data.md shows the layout.")
        self.split = split or next((name for name in there if name.startswith("train")), there[0])
        choose("splits", [self.split], there, root)
        self.read(**options)

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        raise NotImplementedError


class ListedDataset(DiskDataset):
    """Images in files of their own: `read` lists names, labels and rotations."""

    names: Sequence[str]  # paths of the images below the root, unless `source` says otherwise
    labels: Sequence[str]
    quaternions: Sequence[Float64[np.ndarray, "equivalents 4"]] | Float64[np.ndarray, "n equivalents 4"]

    def source(self, i: int) -> Path | bytes:
        """The file of image i, or its bytes."""
        return self.root / self.names[i]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def label(self, i: int) -> str:
        return self.labels[i]

    def rotations(self, i: int) -> Float64[np.ndarray, "equivalents 4"]:
        return self.quaternions[i]

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        return decode_image(self.source(i), self.names[i], self.size)


def choose(what: str, wanted: Sequence, there: Sequence, where: object) -> None:
    """Raise InputError unless all that is wanted is there."""
    if unknown := [one for one in wanted if one not in there]:
        listed = ", ".join(map(str, there))
        raise InputError(f"{where} has the {what} {listed}, not {unknown[0]!r}; choose among them.")
