r"""One image, looked at several times: upright and turned, each answer turned back, all mixed in equal parts.

A camera that rolls by $Z$ about its line of sight sees the rotation $Z R$ and the turned image. A network knows nothing of that, so its
errors on the turned images are nearly those of other networks, and the mixture

$$p(R) = \frac{1}{K} \sum_k p(Z_k R \mid \text{image turned by } Z_k)$$

is the ensemble's, exact like its parts. A view that quarter turns leave as it is gets its four rotations in equal shares. It costs K
passes, and asks for a square image whose light may come from any side.
"""

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from aquamam.datasets.base import RotationDataset
from aquamam.datasets.stream import one_pass
from aquamam.distribution import RotationDistribution
from aquamam.errors import InputError
from aquamam.images import ImageInput
from aquamam.model import AQuaMaM
from aquamam.rotations import inverse, multiply

TURNS = (2, 4)
FACTOR = "turned_sharpness"  # where a checkpoint's description keeps what `temper_turned` found


class TurnedPosterior(RotationDistribution):
    """The mixture of the posteriors of an image's turns."""

    def __init__(self, parts: RotationDistribution, turns: Float[Tensor, "turns 4"]):
        """parts: a batch in which all images come once for each turn, turn after turn."""
        super().__init__(parts._batch // len(turns), ceiling=parts.ceiling)
        self.parts, self.turns = parts, turns
        self.symmetry = parts.symmetry

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        turned = multiply(self.turns.to(q)[:, None], q[:, None])  # (rotations, turns, batch, 4)
        log_p = self.parts.log_prob(turned.flatten(1, 2)).unflatten(1, (len(self.turns), self._batch))
        return log_p.logsumexp(1) - math.log(len(self.turns))

    def _rotations_per_chunk(self) -> int:
        return 2**62  # the parts see to it

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        """As many of each turn as can be, in random order."""
        q = self._back(self.parts.sample((math.ceil(count / len(self.turns)),), generator=generator)).flatten(0, 1)
        order = torch.rand(q.shape[:2], generator=generator, device=q.device).argsort(0)[:count]
        return q[order, torch.arange(self._batch, device=q.device)]

    def _mode(self) -> Float[Tensor, "batch 4"]:
        """The likeliest of the parts' modes."""
        q = self._back(self.parts.mode[None])[0]
        best = self._log_prob(q).argmax(0)
        return q[best, torch.arange(self._batch, device=q.device)]

    def _back(self, q: Float[Tensor, "rotations turnedbatch 4"]) -> Float[Tensor, "rotations turns batch 4"]:
        q = q.unflatten(1, (len(self.turns), self._batch))
        return multiply(inverse(self.turns.to(q))[:, None], q)


class Turned(nn.Module):
    """A model that looks at each image `turns` times; `turned` makes it."""

    def __init__(self, model: AQuaMaM, turns: int, factor: float):
        super().__init__()
        self.model = copy.copy(model)  # the same weights, another sharpness
        self.model.config = replace(model.config, sharpness=tuple(s * factor for s in model.config.sharpness))
        self.config, self.symmetry, self.info = model.config, getattr(model, "symmetry", None), {**_info(model)}
        self.info.pop("calibration", None)  # that of the plain posterior
        self.kind = f"{model.kind}, {turns} turns"
        self.steps = [4 * k // turns for k in range(turns)]  # quarter turns

    def forward(self, images: ImageInput) -> TurnedPosterior:
        upright = self.model.prepare(images)
        parts = self.model(torch.cat([torch.rot90(upright, k, dims=(-2, -1)) for k in self.steps]))
        half = torch.tensor([k * math.pi / 4 for k in self.steps], dtype=torch.float64, device=upright.device)
        zero = torch.zeros_like(half)
        return TurnedPosterior(parts, torch.stack([zero, zero, half.sin(), half.cos()], -1))


def turned(model: AQuaMaM, turns: int = 4, factor: float | None = None) -> Turned:
    """`model` looking at each image 2 or 4 times.

    factor: by which the parts are sharper than the model alone, since their mixture is wider than they are; by default what the
    checkpoint knows (`temper_turned`), else 1.
    """
    if turns not in TURNS:
        raise InputError(f"an image is turned {' or '.join(map(str, TURNS))} times, got {turns}.")
    if not isinstance(model, AQuaMaM) or model.config.embedding == "category":
        raise InputError(f"only AQuaMaM models that read images can look at them turned, got {_called(model)}.")
    known = _info(model).get(FACTOR, {}).get(str(turns), 1.0)
    return Turned(model, turns, known if factor is None else factor)


def temper_turned(model: AQuaMaM, dataset: RotationDataset, limit: int = 1000, *, turns: int = 4) -> float:
    """The factor that makes held-out images likeliest, which is kept in `model.info`."""
    batches = list(one_pass(dataset, 100, limit=limit))

    def surprise(log_factor: float) -> float:
        looking = turned(model, turns, math.exp(log_factor))
        with torch.inference_mode():
            return -float(torch.cat([looking(b.images).log_prob(b.rotations[:, 0]) for b in batches]).double().mean())

    found = minimize_scalar(surprise, bounds=(-0.5, 1.5), method="bounded", options={"xatol": 0.02})
    factor = round(math.exp(float(found.x)), 4)
    model.info = {**_info(model), FACTOR: {**_info(model).get(FACTOR, {}), str(turns): factor}}  # type: ignore[assignment]
    return factor


def _info(model: nn.Module) -> dict[str, Any]:
    return getattr(model, "info", {})


def _called(model: nn.Module) -> str:
    return getattr(model, "kind", type(model).__name__)
