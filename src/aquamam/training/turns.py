r"""One image, looked at several times: upright and turned, each answer turned back, all mixed in equal parts.

A camera that rolls by $Z$ about its line of sight sees the rotation $Z R$ and the turned image. A network knows nothing of that, so its
errors on the turned images are nearly those of other networks, and the mixture

$$p(R) = \frac{1}{K} \sum_k p(Z_k R \mid \text{image turned by } Z_k)$$

is the ensemble's, exact like its parts. With a multiple of four turns, a view that quarter turns leave as it is gets its four rotations
in equal shares. It costs K passes, and asks for an object in the middle of the image whose light may come from any side. Quarter turns move
pixels; others interpolate them, and repeat the border where the corners would be empty.
"""

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from aquamam.data.base import RotationDataset
from aquamam.posterior.distribution import RotationDistribution
from aquamam.errors import InputError
from aquamam.network.images import ImageInput
from aquamam.network.model import AQuaMaM
from aquamam.geometry.rotations import inverse, multiply
from aquamam.training.temperature import AIMS, held_out_masses, looks, unevenness

MOST = 64  # turns
FACTOR = "turned_sharpness"  # where a checkpoint's description keeps what `temper_turned` found


class TurnedPosterior(RotationDistribution):
    """The mixture of the posteriors of an image's turns."""

    def __init__(self, parts: RotationDistribution, turns: Float[Tensor, "turns 4"]):
        """parts: a batch in which all images come once for each turn, turn after turn."""
        super().__init__(parts._batch // len(turns), ceiling=parts.ceiling)
        self.parts, self.turns = parts, turns
        self.symmetry = parts.symmetry

    def within(self, tolerance: float) -> RotationDistribution:
        new = super().within(tolerance).expand(self.batch_shape)
        new.parts = self.parts.within(tolerance)  # type: ignore[attr-defined]
        return new

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
        self.turns = turns
        self.training = model.training  # what is put back into training mode trains the model's batch norms, too

    def forward(self, images: ImageInput) -> TurnedPosterior:
        upright = self.model.prepare(images)
        if not upright.is_floating_point():
            upright = upright.float() / 255
        parts = self.model(torch.cat([turn_image(upright, k, self.turns) for k in range(self.turns)]))
        half = math.pi / self.turns * torch.arange(self.turns, dtype=torch.float64, device=upright.device)
        zero = torch.zeros_like(half)
        return TurnedPosterior(parts, torch.stack([zero, zero, half.sin(), half.cos()], -1))


def turn_image(
    images: Float[Tensor, "batch channels side side"], step: int, turns: int
) -> Float[Tensor, "batch channels side side"]:
    """Images turned anticlockwise by `step` of `turns` equal parts of a full turn, as a camera sees them that rolls clockwise."""
    if 4 * step % turns == 0:
        return torch.rot90(images, 4 * step // turns, dims=(-2, -1))
    angle = 2 * math.pi * step / turns
    cos, sin = math.cos(angle), math.sin(angle)
    back = torch.tensor([[cos, -sin, 0], [sin, cos, 0]], dtype=images.dtype, device=images.device)
    places = F.affine_grid(back.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    read = F.grid_sample(images, places, mode="bicubic", padding_mode="border", align_corners=False)
    return read.clamp(0, 1)


def turned(model: nn.Module, turns: int = 4, factor: float | None = None) -> Turned:
    """`model` looking at each image `turns` times, evenly around the line of sight.

    factor: by which the parts are sharper than the model alone, since their mixture is wider than they are; by default what the
    checkpoint knows (`temper_turned`), else 1.
    """
    if not 2 <= turns <= MOST:
        raise InputError(f"an image is looked at in 2 to {MOST} turns, got {turns}; 4 or 8 are usual.")
    if not isinstance(model, AQuaMaM) or model.config.embedding == "category":
        raise InputError(f"only AQuaMaM models that read images can look at them turned, got {_called(model)}.")
    known = _info(model).get(FACTOR, {}).get(str(turns), 1.0)
    return Turned(model, turns, known if factor is None else factor)


def temper_turned(
    model: AQuaMaM, dataset: RotationDataset, limit: int = 500, *, turns: int = 4, aim: str = "likelihood"
) -> float:
    """The factor for `turned` that suits held-out images best, which is kept in `model.info`.

    aim: the highest "likelihood", or the best "coverage" from there on: a mixture is a little too wide where it is likeliest.
    """
    if aim not in AIMS:
        raise InputError(f"temperatures aim at {' or '.join(AIMS)}, got {aim!r}.")
    images = looks(dataset, limit)

    def surprise(log_factor: float) -> float:
        looking = turned(model, turns, math.exp(log_factor))
        with torch.inference_mode():
            return -float(
                torch.cat([looking(look.images).log_prob(look.truths) for look in images], -1).double().mean()
            )

    def miscoverage(log_factor: float) -> float:
        return unevenness(held_out_masses(turned(model, turns, math.exp(log_factor)), images))

    best = minimize_scalar(surprise, bounds=(-0.5, 1.5), method="bounded", options={"xatol": 0.02}).x
    if aim == "coverage":
        best = minimize_scalar(miscoverage, bounds=(best, best + 0.7), method="bounded", options={"xatol": 0.03}).x
    factor = round(math.exp(float(best)), 4)
    model.info = {**_info(model), FACTOR: {**_info(model).get(FACTOR, {}), str(turns): factor}}  # type: ignore[assignment]
    return factor


def _info(model: nn.Module) -> dict[str, Any]:
    return getattr(model, "info", {})


def _called(model: nn.Module) -> str:
    return getattr(model, "kind", type(model).__name__)
