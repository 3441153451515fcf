"""The test of samples that every system of the toy experiment takes: distances to the modes, and the modes' shares."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import chisquare
from torch import Tensor

from aquamam.reproduce.pairs import Pairs
from aquamam.geometry.rotations import geodesic_angle


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples from the hierarchical model: a viewpoint, then a rotation from the model's distribution for it."""

    category: Int[Tensor, "samples"]
    q: Float[Tensor, "samples 4"]
    wrong: (
        Bool[Tensor, "samples"] | None
    )  # whether the sentence is of no true rotation; None where there are no sentences


def judge(pairs: Pairs, drawn: Drawn, seed: int = 0) -> dict[str, Any]:
    """How samples of any system compare with the truth: distances to the nearest mode, and the shares of the modes."""
    distance = torch.zeros(len(drawn.q), dtype=torch.float64)
    viewpoints = []
    random = np.random.default_rng(seed)
    for i in range(pairs.categories):
        mine = drawn.category == i
        angles = geodesic_angle(drawn.q[mine].double()[:, None], pairs.of(i)[None])
        distance[mine], mode = angles.min(1)
        counts = mode.bincount(minlength=angles.shape[1]).numpy()
        viewpoints.append({"viewpoint": i, **compare_shares(counts, random)})
        viewpoints[-1]["mean_distance_deg"] = float(torch.rad2deg(distance[mine].mean()))
    result: dict[str, Any] = {"samples": len(drawn.q), "mean_distance_deg": float(torch.rad2deg(distance.mean()))}
    if drawn.wrong is not None:
        result["wrong_sentences"] = int(drawn.wrong.sum())
        result["wrong_sentences_near_a_mode"] = int((distance[drawn.wrong] < np.deg2rad(1)).sum())
    return {**result, "viewpoints": viewpoints}


def compare_shares(counts: np.ndarray, random: np.random.Generator, trials: int = 4000) -> dict[str, Any]:
    """Total variation between sampled and uniform shares beside what sampling the truth gives, and the chi-square p-value."""
    n, modes = int(counts.sum()), len(counts)
    truth = np.full(modes, 1 / modes)
    simulated = np.abs(random.multinomial(n, truth, size=trials) / max(n, 1) - truth).sum(1) / 2
    return {
        "samples": n,
        "counts": counts.tolist(),
        "total_variation": float(np.abs(counts / max(n, 1) - truth).sum() / 2),
        "total_variation_of_truth": float(simulated.mean()),
        "total_variation_of_truth_95": float(np.quantile(simulated, 0.95)),
        "p_value": float(chisquare(counts).pvalue) if modes > 1 and n else 1.0,
    }
