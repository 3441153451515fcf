"""Conformal scores of held-out images, by which a model's regions hold the truth as often as they say."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from aquamam.data.base import Batch, RotationDataset
from aquamam.data.labels import draw_labels
from aquamam.data.random import uniforms, words
from aquamam.data.stream import one_pass
from aquamam.errors import InputError
from aquamam.network.model import RotationModel
from aquamam.posterior.calibration import ConformalScores, quantile
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.regions import Drawn, check_level


@torch.no_grad()
def calibrate(
    model: RotationModel,
    dataset: RotationDataset,
    levels: Sequence[float] = (0.5, 0.9, 0.95),
    *,
    samples: int = 200,
    groups: int = 1,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    quiet: bool = True,
) -> dict[str, Any]:
    """Score held-out images, keep the scores in `model.calibration`, and return them with the share of the posterior
    that each level takes ("levels": one for each group).

    The images must be none that the model was trained or chosen on. Save the model afterwards. groups: images are
    divided into so many by the spread of their posteriors, and each group is calibrated by itself, so that neither sure
    nor unsure answers pay for the others.
    """
    if samples < 20 or groups < 1:
        raise InputError(f"samples must be at least 20 and groups at least 1, got {samples} and {groups}.")
    for level in levels:
        check_level(level)
    scores, spreads = [], []
    total = limit if dataset.endless else min(len(dataset), limit or len(dataset))
    bar = tqdm(total=total, unit="img", desc="calibrating", disable=True if quiet else None, dynamic_ncols=True)
    training = model.training
    model.eval()
    try:
        for batch in one_pass(dataset, batch_size, limit=limit, unreadable="skip"):
            if len(batch):
                batch = batch.to(model.device)
                drawn = draw(model(batch.images), batch, samples, seed)
                scores.append(score(drawn, batch, dataset, seed).double().cpu())
                spreads.append(drawn.spread.cpu())
            bar.update(len(batch))
    finally:
        bar.close()
        model.train(training)
    if not scores:
        raise InputError("calibration needs held-out images, and none of these can be read; choose another split.")
    found = _grouped(torch.cat(scores), torch.cat(spreads), groups, samples)
    model.calibration = replace(model.calibration, scores=found)
    shares = {f"{level:g}": [quantile(group, level) for group in found.scores] for level in levels}
    return {**asdict(found), "levels": shares, "images": sum(map(len, scores))}


def draw(posterior: RotationDistribution, batch: Batch, samples: int, seed: int) -> Drawn:
    """Samples of each image, a function of the seed and of the batch."""
    word = int(words(seed, "calibration/samples", np.array(batch.indices[:1], np.int64), 1)[0, 0])
    return Drawn.of(posterior, samples, torch.Generator(device=batch.images.device).manual_seed(word >> 1))


def score(drawn: Drawn, batch: Batch, dataset: RotationDataset, seed: int) -> Float[Tensor, "images"]:
    """For each image the mass of the region that just holds its truth: one of the equivalent ones, drawn evenly.

    A region of `ConformalScores` holds the truth exactly where the score is at most its `mass`.
    """
    numbers = np.array(batch.indices, np.int64)
    # two, and the first of them: asked for one, it gives the pictured rotation, which need not be evenly drawn
    truth = draw_labels(batch, dataset, 2, seed=seed, positions=numbers)[0][0]
    u = torch.from_numpy(uniforms(seed, "calibration/rank", numbers, 1)[:, 0]).to(truth.device)
    return drawn.score(truth, u)


def _grouped(score: Tensor, spread: Tensor, groups: int, samples: int) -> ConformalScores:
    edges = torch.quantile(spread, torch.arange(1, groups, dtype=torch.float64) / groups)
    group = torch.searchsorted(edges, spread.contiguous())
    score = (score * 1e6).ceil() / 1e6  # short in a file; upwards, which only makes regions larger
    scores = tuple(tuple(score[group == k].sort().values.tolist()) for k in range(groups))
    return ConformalScores(samples=samples, scores=scores, edges=tuple(edges.tolist()))
