"""What is typical of held-out images: a Gaussian of the encoder's states, the usual entropy, and scores."""

from dataclasses import replace

import torch

from aquamam.data.base import RotationDataset
from aquamam.data.stream import one_pass
from aquamam.errors import require
from aquamam.network.model import AQuaMaM
from aquamam.posterior.calibration import Typicality

DIRECTIONS = 48  # principal ones that are told apart
LEAST = 20  # images; p-values of fewer could not be below 0.1


@torch.no_grad()
def find_typicality(model: AQuaMaM, dataset: RotationDataset, limit: int | None = None) -> None:
    """Find what is typical of held-out images, in place: one half makes the Gaussian, the other the p-values."""
    batches = one_pass(dataset, 100, limit=limit, unreadable="skip")
    parts = [model.posterior(batch.images.to(model.device)).image_state.double().cpu() for batch in batches]
    states = torch.cat(parts) if parts else torch.zeros(0, 2)
    rule = f"typicality needs at least {LEAST} held-out images that can be read"
    require(len(states) >= LEAST, f"{rule}, got {len(states)}; with 1,000 p-values are good to 0.002.")
    made, held_out = states[::2, :-1], states[1::2]
    mean = made.mean(0)
    _, size, directions = torch.linalg.svd(made - mean, full_matrices=False)
    deviation = size / len(made) ** 0.5
    kept = min(DIRECTIONS, len(deviation) // 2)
    found = Typicality(
        mean=tuple(mean.float().tolist()),
        directions=tuple(map(tuple, (directions[:kept] / deviation[:kept, None].clamp_min(1e-6)).float().tolist())),
        rest=float(deviation[kept:].square().mean().sqrt().clamp_min(1e-6)),
    )
    both = torch.stack([found.distance(held_out[:, :-1]), held_out[:, -1]])
    usual = torch.stack([both.mean(-1), both.std(-1).clamp_min(1e-6)], -1)
    found = replace(found, usual=tuple(map(tuple, usual.tolist())))
    found = replace(found, scores=tuple(found.score(held_out).sort().values.tolist()))
    model.calibration = replace(model.calibration, typicality=found)
