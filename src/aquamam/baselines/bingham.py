r"""Bingham posteriors: one, a mixture, or a mixture trained by winner takes all.

A component is $p(q) = 2 \exp(\sum_i z_i y_i^2) / F(z)$, twice the density on the 3-sphere because q and -q are one rotation, with
$y = l^{-1} q r^{-1}$: two unit quaternions l and r turn the principal axes to any place, smoothly and without a decomposition.
$z = (-κ_1, -κ_2, -κ_3, 0)$, so the component's mode is $l r$. The constant F is by quadrature (see `directional`): 6e-10 relative error
in the density and 6e-9 in its gradient for concentrations from 0 to 1e8.

Gilitschenski et al. (2020) train the mixture by its likelihood. Deng et al. (2020) let, for each true rotation, the component that fits
it best learn (and the others a little): `training="winner"`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from aquamam.baselines.base import Baseline, head
from aquamam.baselines.encoder import EncoderConfig
from aquamam.config import require_positive
from aquamam.errors import InputError
from aquamam.geometry.directional import draw_category, log_bingham_constant, sample_bingham
from aquamam.geometry.rotations import as_unit_quat, inverse, multiply
from aquamam.network.images import ImageInput
from aquamam.network.model import minus_mean
from aquamam.posterior.distribution import RotationDistribution

MAX_CONCENTRATION = 1e8  # a spread of 0.01 degrees; beyond it float32 parameters cannot place a mode


@dataclass(frozen=True, kw_only=True)
class BinghamConfig(EncoderConfig):
    """Everything a checkpoint needs to rebuild the network."""

    components: int = 1
    training: str = "likelihood"  # or "winner"
    relaxation: float = 0.05  # winner: share of the gradient that the losers divide among them

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "components")
        if self.training not in ("likelihood", "winner"):
            raise InputError(f"training must be likelihood or winner, got {self.training!r}.")
        if not 0 <= self.relaxation < 1:
            raise InputError(f"relaxation must lie in [0, 1), got {self.relaxation}.")


class Bingham(Baseline):
    """A linear head gives each component a weight, two quaternions and three log concentrations."""

    kind = "bingham"
    config: BinghamConfig

    def __init__(self, config: BinghamConfig):
        super().__init__(config)
        self.head = head(config.features, 12 * config.components)
        with torch.no_grad():  # modes start spread over all rotations, concentrations at 1
            bias = self.head.bias.view(config.components, 12)
            bias[:, 1:9] = torch.randn(config.components, 8)

    def posterior(self, images: ImageInput) -> "BinghamMixture":
        outputs = self.head(self.encoder(images)).unflatten(-1, (self.config.components, 12)).double()
        weight, left, right, log_concentration = outputs.split([1, 4, 4, 3], -1)
        concentration = log_concentration.clamp_max(math.log(MAX_CONCENTRATION)).exp()
        return BinghamMixture(
            log_weight=weight.squeeze(-1).log_softmax(-1),
            left=torch.nn.functional.normalize(left, dim=-1),
            right=torch.nn.functional.normalize(right, dim=-1),
            z=torch.cat([-concentration, torch.zeros_like(concentration[..., :1])], -1),
        )

    def loss(
        self,
        images: ImageInput,
        q: Float[Tensor, "rotations batch 4"],
        *,
        window: Float[Tensor, "batch 3"] | None = None,
        weights: Float[Tensor, "rotations batch"] | None = None,
        smoothing: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        r"""Minus the log-likelihood, or for winners $-\ln w_k - (1 - ε) \ln p_k - \frac{ε}{K - 1} \sum_{j \ne k} \ln p_j$.

        k is the component with the highest density at the true rotation. At ε = 0 this bounds minus the log-likelihood from above.
        """
        posterior = self.posterior(images)
        if self.config.training == "likelihood":
            return minus_mean(posterior.log_prob(q), weights)
        each = posterior.component_log_prob(as_unit_quat(q))
        winner = each.argmax(-1, keepdim=True)
        best = each.gather(-1, winner).squeeze(-1)
        share = self.config.relaxation / max(self.config.components - 1, 1)
        log_weight = posterior.log_weight.expand(each.shape).gather(-1, winner).squeeze(-1)
        value = log_weight + (1 - self.config.relaxation) * best + share * (each.sum(-1) - best)
        return minus_mean(value if self.config.components > 1 else best, weights)


class BinghamMixture(RotationDistribution):
    """A mixture of Bingham distributions for each image."""

    def __init__(
        self,
        log_weight: Float[Tensor, "batch components"],
        left: Float[Tensor, "batch components 4"],
        right: Float[Tensor, "batch components 4"],
        z: Float[Tensor, "batch components 4"],
    ):
        peak = math.log(2) - float(log_bingham_constant(torch.tensor([-MAX_CONCENTRATION] * 3 + [0.0]).double()))
        super().__init__(len(log_weight), ceiling=peak)
        self.log_weight, self.left, self.right, self.z = log_weight, left, right, z
        self._log_factor = math.log(2) - log_bingham_constant(z)

    def _rotations_per_chunk(self) -> int:
        return max(1, super()._rotations_per_chunk() * 32 // max(self.log_weight.shape[-1], 1))

    def component_log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch components"]:
        """Log density of each component (volume pi^2)."""
        y = multiply(multiply(inverse(self.left), q.unsqueeze(-2)), inverse(self.right))
        return (self.z * y.square()).sum(-1) + self._log_factor

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        return (self.component_log_prob(q) + self.log_weight).logsumexp(-1)

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        component = draw_category(self.log_weight, count, generator)
        rows = torch.arange(self._batch, device=component.device)
        y = sample_bingham(self.z[rows, component], generator=generator)
        return multiply(multiply(self.left[rows, component], y), self.right[rows, component]).float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        """The component's mode that is likeliest under the whole mixture."""
        modes = multiply(self.left, self.right)
        best = self._log_prob(modes.transpose(0, 1)).argmax(0)
        return modes[torch.arange(self._batch, device=best.device), best].float()
