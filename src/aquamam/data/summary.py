"""What a data set holds, in numbers: sizes, classes, symmetries, and how its rotations are spread."""

import math
from collections import Counter
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8
from scipy.stats import chi2

from aquamam.data.base import RotationDataset, UnreadableExample, fit_pixels
from aquamam.errors import require
from aquamam.geometry.symmetry import SymmetryGroup

MANY = 100_000  # rotations are judged by at most this many examples, evenly spaced


def summarise(dataset: RotationDataset, *, images: int | None = 256) -> dict[str, Any]:
    """What `aquamam data inspect` tells: of all labels and rotations, and of `images` evenly spaced images (None: all).

    `about` is what the data set says about itself, `true_rotations` the least and the most of an example.
    """
    require(len(dataset) > 0, "the data set holds no examples; choose another split or weaker conditions.")
    rotations = [dataset.rotations(i) for i in evenly(len(dataset), MANY)]
    sizes: Counter[str] = Counter()
    unreadable, colours = [], []
    for i in evenly(len(dataset), len(dataset) if images is None else images):
        try:
            pixels = dataset.image(i)
        except UnreadableExample as error:
            unreadable.append(str(error))
            continue
        sizes[f"{pixels.shape[0]}x{pixels.shape[1]}"] += 1
        colours.append(pixels.mean((0, 1)))
    counts, lengths = Counter(map(dataset.label, range(len(dataset)))), [len(q) for q in rotations]
    return {
        "kind": dataset.kind,
        "examples": len(dataset),
        "classes": {name: counts[name] for name in dataset.classes},
        "symmetries": {name: symmetry_name(dataset.symmetry(name)) for name in dataset.classes},
        "image_sizes": dict(sizes.most_common()),
        "images_read": len(colours),
        "unreadable": unreadable,
        "mean_colour": np.mean(colours, 0).tolist() if colours else [math.nan] * 3,
        "true_rotations": [min(lengths), max(lengths)],
        "rotations": spread(np.stack([q[0] for q in rotations])),
        "about": dataset.describe(),
    }


def evenly(length: int, count: int) -> list[int]:
    """At most `count` positions out of `length`, evenly spaced."""
    return np.unique(np.linspace(0, length - 1, min(length, count)).round().astype(int)).tolist()


def spread(q: Float64[np.ndarray, "n 4"]) -> dict[str, Any]:
    """How rotations lie on SO(3).

    `uniform_p` is the p-value of Bingham's test, T = 12 n (tr S^2 - 1/4) with S = mean of q q^T, chi-squared with 9
    degrees of freedom; `eigenvalues` are those of S, all 1/4 for uniform rotations. `mean` (xyzw) is the mean rotation,
    `median_deg` the median angle to it, 136 degrees for uniform ones, and `repeated` counts those that occurred before.
    """
    values, vectors = np.linalg.eigh(q.T @ q / len(q))
    mean = vectors[:, -1] * (1 if vectors[3, -1] >= 0 else -1)
    cosine = np.clip(np.abs(q @ mean), 0, 1)
    return {
        "eigenvalues": values[::-1].tolist(),
        "uniform_p": float(chi2.sf(12 * len(q) * (np.square(values).sum() - 0.25), 9)),
        "mean": mean.tolist(),
        "median_deg": float(np.degrees(2 * np.arccos(np.median(cosine)))),
        "repeated": len(q) - len(np.unique(q.round(9), axis=0)),
    }


def symmetry_name(group: SymmetryGroup | None) -> str | None:
    """none, 24 rotations, every turn about (0, 0, 1), ..."""
    if group is None:
        return None
    if group.axis is not None:
        axis = ", ".join(f"{x + 0.0:.3g}" for x in group.axis.tolist())
        return f"every turn about ({axis})" + (" and half turns across" if len(group.elements) > 1 else "")
    return "none" if len(group.elements) == 1 else f"{len(group.elements)} rotations"


def sample_sheet(
    data: RotationDataset, count: int = 32, side: int = 96
) -> tuple[UInt8[np.ndarray, "n h w 3"], list[str]]:
    """Evenly spaced examples of one size, each with its class and rotation, for a contact sheet."""
    pictures, labels = [], []
    for i in evenly(len(data), count):
        try:
            pictures.append(fit_pixels(data.image(i), side))
        except UnreadableExample:
            pictures.append(np.zeros((side, side, 3), np.uint8))
        q = data.rotations(i)[0]
        labels.append(f"{data.label(i)[:14]}\n{q[0]:+.2f} {q[1]:+.2f}\n{q[2]:+.2f} {q[3]:+.2f}")
    return np.stack(pictures), labels
