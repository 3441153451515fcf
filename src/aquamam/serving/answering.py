"""What the network's thread does for each kind of request: posteriors in, plain JSON values out."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aquamam.geometry.charts import ChartPoint
from aquamam.geometry.rotations import as_unit_quat, random_quat
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.modes import Answer, Folded, angles_deg, answers, cluster, plain_answers, shares_within
from aquamam.posterior.sentences import QuaternionSentences
from aquamam.serving.batcher import Encoded
from aquamam.serving.schemas import LogProbRequest, PosteriorRequest, PredictRequest, SampleRequest

ASKED, SAMPLE, UNIFORM = 0, 1, 2  # where a point of /v1/posterior comes from


def predict(encoded: Encoded, i: int, asked: PredictRequest) -> dict[str, Any]:
    """The same record as `aquamam predict --json` gives for the same image, samples and seed."""
    if asked.samples == 0 and asked.strategy == "greedy":
        return encoded.plain[i].to_dict(matrix=asked.matrix)
    posterior = encoded.row(i)
    generator = _generator(encoded, asked.seed)
    if asked.samples == 0:
        (answer,) = plain_answers(posterior, strategy=asked.strategy, generator=generator)
    else:
        (answer,) = answers(posterior, asked.samples, strategy=asked.strategy, generator=generator)
    return answer.to_dict(matrix=asked.matrix)


def sample(encoded: Encoded, i: int, asked: SampleRequest) -> dict[str, Any]:
    """Draws and their log densities."""
    posterior = encoded.row(i)
    assert asked.seed is not None
    q = posterior.sample((asked.samples,), generator=_generator(encoded, asked.seed))
    return {
        "quaternions_xyzw": _rounded(q[:, 0], 7),
        "log_density": numbers(posterior.log_prob(q)[:, 0]),
        "seed": asked.seed,
    }


def log_prob(encoded: Encoded, i: int, asked: LogProbRequest) -> dict[str, Any]:
    """Log densities of the rotations that were asked about."""
    posterior = encoded.row(i)
    q = as_unit_quat(asked.rotations, "rotations").to(encoded.device)
    log_p = posterior.log_prob(q[:, None])[:, 0]
    return {"log_density": numbers(log_p), "ceiling": number(posterior.ceiling), "measure": "pi^2"}


def explore(encoded: Encoded, i: int, asked: PosteriorRequest) -> dict[str, Any]:
    """All that a picture of a posterior needs: the answer with its modes, and rotations with their densities.

    The same seed gives the same random numbers for every image, so that points move instead of flickering when an image changes.
    """
    posterior, device = encoded.row(i), encoded.device
    drawn, drawn_log_p = draw(posterior, asked.samples, _generator(encoded, asked.seed))
    found = cluster(drawn)
    answer = posterior.mode.double()
    given = as_unit_quat(asked.rotations, "rotations").reshape(-1, 4) if asked.rotations else torch.zeros(0, 4)
    anywhere = random_quat(
        (asked.uniform,), generator=torch.Generator().manual_seed(asked.seed), dtype=torch.float64
    )  # fmt: skip
    tops = torch.tensor([mode.quaternion for mode in found.modes], dtype=torch.float64).reshape(-1, 4)
    parts = [part.double().to(device) for part in (given, anywhere, answer, tops)]
    log_p = posterior.log_prob(torch.cat(parts)[:, None])[:, 0].double().cpu()
    given_log_p, anywhere_log_p, answer_log_p, tops_log_p = log_p.split([len(part) for part in parts])
    q = torch.cat([given.double(), drawn.double().cpu(), anywhere])
    log_p = torch.cat([given_log_p, drawn_log_p.double().cpu(), anywhere_log_p])
    told = Answer(
        quaternion=tuple(answer[0].tolist()),  # type: ignore[arg-type]
        log_density=float(answer_log_p),
        ceiling=float(posterior.ceiling),
        shares=shares_within(angles_deg(answer.cpu(), drawn.cpu())[0]),
        modes=tuple(replace(mode, log_density=float(top)) for mode, top in zip(found.modes, tops_log_p)),
        folded=None if posterior.symmetry is None else Folded.of(drawn, answer[0], posterior.symmetry),
    )
    source = np.repeat([ASKED, SAMPLE, UNIFORM], [len(given), asked.samples, asked.uniform])
    mode = np.full(len(source), -1)
    mode[source == SAMPLE] = found.labels
    points = {
        "quaternions_xyzw": _rounded(q, 5),
        "log_density": numbers(log_p, 3),
        "source": source.tolist(),
        "mode": mode.tolist(),
    }
    return {**told.to_dict(), "points": points}


def draw(posterior: RotationDistribution, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws of one image's posterior, (count, 4), and their log densities, (count,).

    Drawing a sentence has told its probability already, so where the density is one of cells no second pass is needed. (A draw
    within rounding of an edge may so get the density of the cell beside it.)
    """
    told = isinstance(posterior, QuaternionSentences) and posterior.cells.density == "cells" and posterior.alike is None
    if not told:
        q = posterior.sample((count,), generator=generator)
        return q[:, 0], posterior.log_prob(q)[:, 0]
    assert isinstance(posterior, QuaternionSentences)
    cells = posterior.cells
    chart, cell, log_p = posterior.sentences(count, generator=generator)
    u = cells.uniform(cell, generator)
    point = ChartPoint(chart, u, (1 - u.square().sum(-1)).clamp_min(0).sqrt())
    return cells.chart.join(chart, u)[:, 0].float(), (log_p + cells.log_factor(point, cell))[:, 0]


def number(value: float, digits: int = 4) -> float | None:
    """Rounded; JSON knows no infinity."""
    return round(value, digits) if math.isfinite(value) else None


def numbers(values: Tensor, digits: int = 4) -> list[float | None]:
    return [number(v, digits) for v in values.double().tolist()]


def _rounded(values: Tensor, digits: int) -> list:
    return torch.round(values.double(), decimals=digits).tolist()


def _generator(encoded: Encoded, seed: int) -> torch.Generator:
    return torch.Generator(device=encoded.device).manual_seed(seed)
