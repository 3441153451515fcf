"""What the network's thread does for each kind of request: posteriors in, plain values out."""

from typing import Any

import torch
from torch import Tensor

from aquamam.geometry.rotations import as_unit_quat
from aquamam.plotting.cloud import make_cloud
from aquamam.posterior.answers import answers
from aquamam.serving.batcher import Encoded
from aquamam.serving.schemas import LogProbRequest, PosteriorRequest, PredictRequest, SampleRequest


def predict(encoded: Encoded, i: int, asked: PredictRequest) -> dict[str, Any]:
    """The same record as `aquamam predict --json` gives for the same image, samples and seed."""
    if asked.samples == 0 and asked.strategy == "greedy":
        return encoded.plain[i].to_dict(matrix=asked.matrix)
    options: dict[str, Any] = {"strategy": asked.strategy, "generator": encoded.generator(asked.seed)}
    (answer,) = answers(encoded.row(i), asked.samples, symmetry=encoded.model.symmetry, **options)
    return answer.to_dict(matrix=asked.matrix)


def sample(encoded: Encoded, i: int, asked: SampleRequest) -> dict[str, Any]:
    """Draws and their log densities."""
    assert asked.seed is not None
    posterior = encoded.row(i)
    q = posterior.sample((asked.samples,), generator=encoded.generator(asked.seed))
    log_p = posterior.log_prob(q)[:, 0]
    return {"quaternions_xyzw": _rounded(q[:, 0], 7), "log_density": _rounded(log_p, 4), "seed": asked.seed}


def log_prob(encoded: Encoded, i: int, asked: LogProbRequest) -> dict[str, Any]:
    """Log densities of the rotations that were asked about."""
    posterior = encoded.row(i)
    q = as_unit_quat(asked.rotations, "rotations").to(encoded.model.device)
    log_p = posterior.log_prob(q[:, None])[:, 0]
    return {"log_density": _rounded(log_p, 4), "ceiling": round(posterior.ceiling, 4), "measure": "pi^2"}


def explore(encoded: Encoded, i: int, asked: PosteriorRequest) -> dict[str, Any]:
    """All that a picture of a posterior needs: the answer with its modes, and rotations with their densities.

    The same seed gives the same random numbers for every image: points move, and do not flicker, when an image changes.
    """
    cloud = make_cloud(
        encoded.row(i),
        samples=asked.samples,
        uniform=asked.uniform,
        truth=as_unit_quat(asked.rotations, "rotations") if asked.rotations else None,
        symmetry=encoded.model.symmetry,
        generator=encoded.generator(asked.seed),
        modes_from=asked.samples,
    )
    return cloud.to_dict()


def _rounded(values: Tensor, digits: int) -> list[Any]:
    return torch.round(values.double(), decimals=digits).tolist()
