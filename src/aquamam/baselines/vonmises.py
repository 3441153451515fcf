r"""A von Mises mixture on Euler angles (Prokudin et al. 2018).

A component is a product of three von Mises distributions, one an angle, their means written as biternions (cos, sin).
It lives on the torus of angles $(α, β, γ)$, which covers the rotations twice: $(α + π, π - β, γ + π)$ is the same
one. The volume element is $dV = \tfrac18 |\cos β| \, dα \, dβ \, dγ$ (of $π^2$ in all), so rotations have the density

$$p(q) = \frac{8}{|\cos β|} (f(α, β, γ) + f(α + π, π - β, γ + π)),$$

which integrates to one exactly and grows without bound at gimbal lock, $\cos β = 0$: a flaw of the chart that belongs
to the system.
"""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from aquamam.baselines.base import MixtureModel, MixturePosterior
from aquamam.baselines.encoder import EncoderConfig
from aquamam.geometry.cells import SMALLEST
from aquamam.geometry.directional import log_von_mises, sample_von_mises
from aquamam.geometry.rotations import euler_to_quat, quat_to_euler
from aquamam.network.images import ImageInput
from aquamam.posterior.distribution import Generator, Images, Rotations

Angles = Float[Tensor, "*#batch 3"]


@dataclass(frozen=True, kw_only=True)
class VonMisesConfig(EncoderConfig):
    positive: ClassVar = ("components",)
    choices: ClassVar = {"euler": tuple(map("".join, (*permutations("XYZ"), *permutations("xyz"))))}

    euler: str = "YXZ"  # in SciPy's notation; the paper's data is written in these
    components: int = 16


class VonMises(MixtureModel):
    """Each component lies at three biternions, of which the cosines stand before the sines."""

    kind = "vonmises"
    places = (3, 3)
    config: VonMisesConfig

    def posterior(self, images: ImageInput) -> "VonMisesMixture":
        log_weight, cosine, sine, concentration = self.components(images)
        return VonMisesMixture(log_weight, torch.atan2(sine, cosine), concentration, self.config.euler)


def log_euler_density(q: Tensor, mean: Angles, concentration: Angles, euler: str) -> Float[Tensor, "..."]:
    """Log density (volume pi^2) of rotations (xyzw) whose Euler angles are independent, each von Mises."""
    angles = quat_to_euler(q, euler)
    first, middle, last = angles.unbind(-1)
    other = torch.stack([first + math.pi, math.pi - middle, last + math.pi], -1)
    both = [log_von_mises(a, mean, concentration).sum(-1) for a in (angles, other)]
    return torch.logaddexp(*both) + math.log(8) - torch.cos(middle).abs().clamp_min(SMALLEST).log()


class VonMisesMixture(MixturePosterior):
    """Components of centres, which are angles, and concentrations, (batch, components, 3) each."""

    def __init__(
        self, log_weight: Float[Tensor, "batch components"], centre: Angles, concentration: Angles, euler: str
    ):
        super().__init__(log_weight, centre, concentration)
        self.centre, self.concentration, self.euler = centre, concentration, euler

    def _some(self, images: Images) -> "VonMisesMixture":
        weight, centre, concentration = (part[images] for part in (self.log_weight, *self.parts))
        return VonMisesMixture(weight, centre, concentration, self.euler)

    def component_log_prob(self, q: Rotations) -> Float[Tensor, "rotations batch components"]:
        return log_euler_density(q.unsqueeze(-2), self.centre, self.concentration, self.euler)

    def component_modes(self) -> Float[Tensor, "batch components 4"]:
        return euler_to_quat(self.centre, self.euler)

    def component_draw(self, centre: Tensor, concentration: Tensor, *, generator: Generator) -> Rotations:
        return euler_to_quat(sample_von_mises(centre, concentration, generator=generator), self.euler)
