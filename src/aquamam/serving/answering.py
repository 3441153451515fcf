"""What the network's thread does for each kind of request: posteriors in, plain JSON values out."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aquamam.geometry.rotations import as_unit_quat, random_quat
from aquamam.posterior.answers import Answer, Folded, answers, plain_answers, shares_within
from aquamam.posterior.modes import angles_deg, cluster
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
        (answer,) = answers(
            posterior,
            asked.samples,
            strategy=asked.strategy,
            symmetry=encoded.model.symmetry,
            generator=generator,
        )
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
    posterior, device, symmetry = encoded.row(i), encoded.device, encoded.model.symmetry
    drawn = posterior.sample((asked.samples,), generator=_generator(encoded, asked.seed))[:, 0]
    found = cluster(drawn)
    answer = posterior.mode.double()
    given = as_unit_quat(asked.rotations, "rotations").reshape(-1, 4) if asked.rotations else torch.zeros(0, 4)
    anywhere = random_quat(
        (asked.uniform,), generator=torch.Generator().manual_seed(asked.seed), dtype=torch.float64
    )  # fmt: skip
    tops = torch.tensor([mode.quaternion for mode in found.modes], dtype=torch.float64).reshape(-1, 4)
    parts = [part.double().to(device) for part in (given, drawn, anywhere, answer, tops)]
    log_p = posterior.log_prob(torch.cat(parts)[:, None])[:, 0].double().cpu()
    shown = len(given) + len(drawn) + len(anywhere)
    q = torch.cat([given.double(), drawn.double().cpu(), anywhere])
    told = Answer(
        quaternion=tuple(answer[0].tolist()),  # type: ignore[arg-type]
        log_density=float(log_p[shown]),
        ceiling=float(posterior.ceiling),
        shares=shares_within(angles_deg(answer.cpu(), drawn.cpu())[0]),
        modes=tuple(replace(mode, log_density=float(top)) for mode, top in zip(found.modes, log_p[shown + 1 :])),
        folded=None if symmetry is None else Folded.of(drawn, answer[0], symmetry),
    )
    source = np.repeat([ASKED, SAMPLE, UNIFORM], [len(given), asked.samples, asked.uniform])
    mode = np.full(len(source), -1)
    mode[source == SAMPLE] = found.labels
    points = {
        "quaternions_xyzw": _rounded(q, 5),
        "log_density": numbers(log_p[:shown], 3),
        "source": source.tolist(),
        "mode": mode.tolist(),
    }
    return {**told.to_dict(), "points": points}


def number(value: float, digits: int = 4) -> float | None:
    """Rounded; JSON knows no infinity."""
    return round(value, digits) if math.isfinite(value) else None


def numbers(values: Tensor, digits: int = 4) -> list[float | None]:
    return [number(v, digits) for v in values.double().tolist()]


def _rounded(values: Tensor, digits: int) -> list:
    return torch.round(values.double(), decimals=digits).tolist()


def _generator(encoded: Encoded, seed: int) -> torch.Generator:
    return torch.Generator(device=encoded.device).manual_seed(seed)
