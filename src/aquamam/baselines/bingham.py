r"""Bingham posteriors: one, a mixture, or a mixture trained by winner takes all.

A component is $p(q) = 2 \exp(\sum_i z_i y_i^2) / F(z)$, twice the density on the 3-sphere because q and -q are one
rotation, with $y = l^{-1} q r^{-1}$: two unit quaternions l and r take the principal axes to any place, smoothly and
without a decomposition. $z = (-κ_1, -κ_2, -κ_3, 0)$, so the component's mode is $l r$.

Gilitschenski et al. (2020) train the mixture by its likelihood. Deng et al. (2020) let, for each true rotation, the
component that fits it best learn (and the others a little): `training="winner"`.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from aquamam.baselines.base import MAX_CONCENTRATION, MixtureModel, MixturePosterior
from aquamam.baselines.encoder import EncoderConfig
from aquamam.errors import require
from aquamam.geometry.directional import log_bingham_constant, sample_bingham
from aquamam.geometry.rotations import as_unit_quat, inverse, multiply
from aquamam.network.images import ImageInput
from aquamam.posterior.distribution import Densities, Generator, Images, Rotations

Axes = Float[Tensor, "batch components 4"]


@dataclass(frozen=True, kw_only=True)
class BinghamConfig(EncoderConfig):
    positive: ClassVar = ("components",)
    choices: ClassVar = {"training": ("likelihood", "winner")}

    components: int = 1
    training: str = "likelihood"
    relaxation: float = 0.05  # winner: share of the gradient that the losers divide among them

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.relaxation < 1, f"relaxation must lie in [0, 1), got {self.relaxation}.")


class Bingham(MixtureModel):
    """Each component lies where two quaternions, left and right, say."""

    kind = "bingham"
    places = (4, 4)
    config: BinghamConfig

    def posterior(self, images: ImageInput) -> "BinghamMixture":
        log_weight, left, right, concentration = self.components(images)
        z = F.pad(-concentration, (0, 1))
        return BinghamMixture(log_weight, F.normalize(left, dim=-1), F.normalize(right, dim=-1), z)

    def objective(self, images: ImageInput, q: Rotations, **options: Any) -> Densities:
        r"""The log-likelihood, or for winners $\ln w_k + (1 - ε) \ln p_k + \frac{ε}{K - 1} \sum_{j \ne k} \ln p_j$.

        k is the component with the highest density at the true rotation. At ε = 0 it bounds the log-likelihood from
        below.
        """
        posterior = self.posterior(images)
        if self.config.training == "likelihood" or self.config.components == 1:
            return posterior.log_prob(q)
        each = posterior.component_log_prob(as_unit_quat(q))
        best, winner = each.max(-1, keepdim=True)
        log_weight = posterior.log_weight.expand(each.shape).gather(-1, winner)
        losers = (each.sum(-1, keepdim=True) - best) / (self.config.components - 1)
        return (log_weight + best.lerp(losers, self.config.relaxation)).squeeze(-1)


class BinghamMixture(MixturePosterior):
    """Components of quaternions left and right, and z."""

    def __init__(self, log_weight: Float[Tensor, "batch components"], left: Axes, right: Axes, z: Axes):
        peak = math.log(2) - float(log_bingham_constant(torch.tensor([-MAX_CONCENTRATION] * 3 + [0.0])))
        super().__init__(log_weight, left, right, z, ceiling=peak)
        self.left, self.right, self.z = left, right, z
        self._log_factor = math.log(2) - log_bingham_constant(z)

    def _some(self, images: Images) -> "BinghamMixture":
        return BinghamMixture(*(part[images] for part in (self.log_weight, *self.parts)))

    def component_log_prob(self, q: Rotations) -> Float[Tensor, "rotations batch components"]:
        y = multiply(multiply(inverse(self.left), q.unsqueeze(-2)), inverse(self.right))
        return (self.z * y.square()).sum(-1) + self._log_factor

    def component_modes(self) -> Float[Tensor, "batch components 4"]:
        return multiply(self.left, self.right)

    def component_draw(self, left: Tensor, right: Tensor, z: Tensor, *, generator: Generator) -> Rotations:
        return multiply(multiply(left, sample_bingham(z, generator=generator)), right)
