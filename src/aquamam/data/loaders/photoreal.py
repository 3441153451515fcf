"""Physically based pictures of a solid (`runs/photoreal.py`); those of the die ship with the package."""

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from PIL import Image

from aquamam.data.base import Batch, ListedDataset, decode_image, fit_pixels
from aquamam.geometry.camera import NOMINAL
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.shape.lookalikes import Lookalikes

BUNDLED = Path(__file__).parents[1] / "photoreal"
FACTS = "photoreal.json"


class PhotorealDataset(ListedDataset):
    """`photoreal.json` and a sheet of pictures for each class: `centred` as `aquamam render` frames them, and
    `detector`, crops of detectors' boxes from 4 to 15 radii. Each example has its window (`rendering.photo`), and lists
    all rotations that give the same view. Classes alternate, so that the first examples show all of them.
    """

    kind = "photoreal"
    marks = (FACTS,)
    classes = ("centred", "detector")

    def __init__(self, root: Path | str = BUNDLED, split: str | None = None, *, size: int | None = None):
        super().__init__(root, split, size=size)

    def read(self) -> None:
        self.facts: dict[str, Any] = json.loads((self.root / FACTS).read_text())
        self.solid = solid(self.facts["object"])
        self.symmetries = dict.fromkeys(self.classes, self.solid.symmetry)
        pictured = {"name": self.facts["object"], "mesh": self.facts["mesh"]}
        self.about = {"photoreal": True, "objects": [pictured], "seed": self.facts["seed"]}
        self._sheets = {c: decode_image(self.root / f"{c}.jpg", c) for c in self.classes if self.facts[c]}
        places = sorted(((k + 0.5) / len(self.facts[c]), c, k) for c in self.classes for k in range(len(self.facts[c])))
        self._places = [(c, k) for _, c, k in places]
        self.names, self.labels = [f"{c}/{k}" for c, k in self._places], [c for c, _ in self._places]
        # what is known of each picture: rotation, distance, window, and names of its light, place and surface
        self.rows: list[dict[str, Any]] = [self.facts[c][k] for c, k in self._places]
        q, distances = (np.array([row[name] for row in self.rows]) for name in ("rotation", "distance"))
        hidden = Lookalikes.of(self.solid.mesh, shape=self.solid.shape)
        self.quaternions = list(q[:, None]) if hidden is None else hidden.equivalents(q, distances)

    @staticmethod
    def splits(root: Path) -> tuple[str, ...]:
        return ("test",)

    def image(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        label, k = self._places[i]
        side, sheet = self.facts["size"], self._sheets[label]
        row, column = divmod(k, sheet.shape[1] // side)
        return fit_pixels(sheet[row * side : (row + 1) * side, column * side : (column + 1) * side], self.size)

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        whole = super().batch(indices, unreadable=unreadable)
        windows = np.array([self.rows[i]["window"] for i in whole.indices]).reshape(-1, 3)
        return replace(whole, windows=torch.from_numpy(windows).float())

    def plain(self, i: int, q: Float64[np.ndarray, "n 4"], side: int) -> UInt8[np.ndarray, "n side side 3"]:
        """Our own renders of rotations (xyzw) from the place and through the window of picture i."""
        (x, y, b), distance, pixels = self.rows[i]["window"], self.rows[i]["distance"], 4 * side
        radius = float(np.linalg.norm(self.solid.mesh.vertices, axis=1).max())
        width = radius / distance / (NOMINAL * math.exp(b))  # of the window, in the plane at distance one
        half = width * (0.5 + max(abs(x), abs(y)))
        settings = RenderSettings(size=pixels, distance=distance, fov_deg=2 * math.degrees(math.atan(half)))
        middle, reach = pixels / 2 * (1 - width / half * np.array([x, y])), pixels / 4 * width / half
        box = tuple(np.concatenate([middle - reach, middle + reach]).clip(0, pixels))
        whole = map(Image.fromarray, render(self.solid.mesh, q, settings))
        return np.stack([np.asarray(view.resize((side, side), Image.Resampling.BOX, box=box)) for view in whole])
