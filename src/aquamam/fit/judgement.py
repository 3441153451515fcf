"""How good a fitted model is on renders that it has not seen: by class of views, how often its sets hold the truth, and
where it errs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree

from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.evaluation.results import LEVELS, Evaluation, Figures
from aquamam.geometry.rotations import quat_to_matrix
from aquamam.network.model import RotationModel
from aquamam.pages import fit as fitpage
from aquamam.pages.evaluation import write_report

SAMPLES = 200  # rotations among which truths are ranked
CURVE = "curve"  # the class of views that fit a whole curve of rotations


def judge(
    model: RotationModel, data: RenderedDataset, views: dict[str, Any], out: Path, *, quiet: bool = True
) -> dict[str, Any]:
    """Evaluate the model, write evaluation.html and .json, and return what the page of the fit shows.

    views: directions and the class of each. An image's class is told by how many rotations are listed for it, or else
    by the nearest direction.
    """
    judged, name = evaluate(model, data, samples=SAMPLES, quiet=quiet), data.classes[0]
    about: dict[str, Any] = {"model": out.name or name, "data": f"held-out renders of {name}"}
    about |= {"kind": model.kind, "parameters": model.parameter_count, "seconds": 0}
    write_report(out, judged, data, about)
    seen_from = quat_to_matrix(judged.columns["truth"])[:, 2].numpy()
    cell = cKDTree(np.array(views["directions"])).query(seen_from)[1]
    kinds = np.array(views["kinds"])[cell]
    if data.lookalikes:
        (known,) = data.lookalikes.values()
        listed = judged.columns["listed"].tolist()
        kinds = np.array([CURVE if known.continuous and count > 1 else str(count) for count in listed])
    return {
        "evaluation": {k: v for k, v in judged.to_dict().items() if k not in ("curves", "worst", "unlikely")},
        "classes": class_rows(judged, kinds),
        "cells": cell_means(judged, cell, len(views["kinds"])),
        "pictures": {
            "worst": fitpage.worst(data, judged.worst[:6]),
            "unlikely": fitpage.worst(data, judged.unlikely[:6]),
        },
    }


def class_rows(judged: Evaluation, kinds: np.ndarray) -> list[dict[str, Any]]:
    """Figures and coverage of all images and of each class of views."""
    names = ["images", "mean_log_likelihood", "mean_error_deg", "median_error_deg", "spread_deg"]
    rows = []
    for kind in ("all", *sorted(set(kinds.tolist()), key=rank)):
        mine = torch.from_numpy((kinds == kind) | (kind == "all"))
        figures = Figures.of_columns({name: column[mine] for name, column in judged.columns.items()}, "greedy")
        coverage = {}
        for level in LEVELS:
            share = getattr(figures, f"held{round(100 * level)}")
            # of the images here, and of as large a part of those that set the thresholds
            se = math.sqrt(level * (1 - level) * 2 / figures.images)
            coverage[f"{level:g}"] = {"share": share, "se": se, "within_two_se": abs(share - level) <= 2 * se}
        words = "all views" if kind == "all" else kind_words(kind)
        rows.append({"kind": kind, "words": words, **{n: getattr(figures, n) for n in names}, "coverage": coverage})
    return rows


def cell_means(judged: Evaluation, cell: np.ndarray, count: int) -> dict[str, list[Any]]:
    """Of each direction's images the number, the mean error and the mean log-likelihood."""
    number = np.bincount(cell, minlength=count)
    means: dict[str, list[Any]] = {"images": number.tolist()}
    columns = {
        "error_deg": judged.columns["error.greedy"].rad2deg(),
        "log_likelihood": judged.columns["log_likelihood"],
    }
    for name, column in columns.items():
        total = np.bincount(cell, column.numpy(), minlength=count)
        means[name] = [float(t / n) if n else None for t, n in zip(total, number)]
    return means


def rank(kind: str) -> float:
    """Classes are ordered by how many rotations fit."""
    return math.inf if kind == CURVE else float(kind)


def kind_words(kind: str) -> str:
    """A class of views in words."""
    if kind == CURVE:
        return "a curve of rotations"
    return "one rotation" if kind == "1" else f"{kind} rotations"
