"""What the baselines have in common: an encoder, mixtures, and a climb where no formula gives the mode."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from aquamam.baselines.encoder import Encoder, EncoderConfig
from aquamam.geometry.directional import draw_category
from aquamam.geometry.rotations import multiply, rotvec_to_quat
from aquamam.network.images import ImageInput
from aquamam.network.model import RotationModel
from aquamam.posterior.distribution import Densities, Generator, RotationDistribution, Rotations

MAX_CONCENTRATION = 1e8  # a spread of 0.01 degrees; beyond it float32 parameters cannot place a mode
Quaternions = Float[Tensor, "batch 4"]


class Baseline(RotationModel):
    """A model with an encoder that turns an image into one feature; a system adds its head."""

    def __init__(self, config: EncoderConfig, encoder: nn.Module | None = None):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config) if encoder is None else encoder


class ConditionedMLP(nn.Module):
    """A ReLU network of (image feature, query) whose first layer is split: an image's part is computed once."""

    def __init__(self, features: int, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        self.image = nn.Linear(features, width)
        self.query = nn.Linear(inputs, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, outputs)

    def forward(
        self, context: Float[Tensor, "batch width"], query: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "... outputs"]:
        """From `image(features)` and queries (*, batch, inputs), or (*, 1, inputs) if all images share them."""
        x = F.relu(context + self.query(query), inplace=True)
        for layer in self.hidden:
            x = F.relu(layer(x), inplace=True)
        return self.out(x)


def head(inputs: int, outputs: int, gain: float = 0.1) -> nn.Linear:
    """A last layer that starts small, so that training starts from a broad distribution."""
    linear = nn.Linear(inputs, outputs)
    with torch.no_grad():
        linear.weight.mul_(gain)
        linear.bias.zero_()
    return linear


class MixtureModel(Baseline):
    """A linear head gives each component a weight, what says where it lies, and three log concentrations."""

    places: ClassVar[tuple[int, ...]]  # sizes of what says where it lies

    def __init__(self, config: Any):
        super().__init__(config)
        numbers = sum(self.places)
        self.head = head(config.features, (1 + numbers + 3) * config.components)
        with torch.no_grad():  # components start spread over all rotations, concentrations at 1
            self.head.bias.view(config.components, -1)[:, 1 : 1 + numbers] = torch.randn(config.components, numbers)

    def components(self, images: ImageInput) -> tuple[Tensor, ...]:
        """Log weights, where the components lie, and concentrations, (batch, components, ...), float64."""
        outputs = self.head(self.encoder(images)).unflatten(-1, (self.config.components, -1)).double()
        weight, *places, log_concentration = outputs.split([1, *self.places, 3], -1)
        concentration = log_concentration.clamp_max(math.log(MAX_CONCENTRATION)).exp()
        return weight.squeeze(-1).log_softmax(-1), *places, concentration


class MixturePosterior(RotationDistribution):
    """A mixture for each image, of components with densities, draws and modes of their own."""

    def __init__(self, log_weight: Float[Tensor, "batch components"], *parts: Tensor, ceiling: float = torch.inf):
        """parts: what makes the components, tensors of shape (batch, components, ...)."""
        super().__init__(len(log_weight), ceiling=ceiling, row_floats=32 * log_weight.shape[-1])
        self.log_weight, self.parts = log_weight, parts

    def component_log_prob(self, q: Rotations) -> Float[Tensor, "rotations batch components"]:
        raise NotImplementedError

    def component_modes(self) -> Float[Tensor, "batch components 4"]:
        """Where each component is densest, xyzw."""
        raise NotImplementedError

    def component_draw(self, *parts: Any, **options: Any) -> Rotations:
        """One draw from each of some components, xyzw, given their rows of `parts`."""
        raise NotImplementedError

    def _log_prob(self, q: Rotations) -> Densities:
        return (self.component_log_prob(q) + self.log_weight).logsumexp(-1)

    def _sample(self, count: int, generator: Generator) -> Rotations:
        which = draw_category(self.log_weight, count, generator)
        images = torch.arange(self._batch, device=which.device)
        return self.component_draw(*(part[images, which] for part in self.parts), generator=generator).float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        """The component's mode that is likeliest under the whole mixture."""
        modes = self.component_modes().transpose(0, 1)
        return best_of(modes, self._log_prob(modes)).float()


def best_of(q: Rotations, log_p: Densities) -> Quaternions:
    return q[log_p.argmax(0), torch.arange(q.shape[1], device=q.device)]


def ascend(log_density: Callable[[Tensor], Tensor], q: Quaternions, steps: int, reach: float = 0.05) -> Quaternions:
    """The best rotation on a climb of log_density ((1, batch, 4) -> (1, batch)) from q by gradient steps on the group.

    Steps have a set length, `reach` radians at first and a thousandth of it at last, and some momentum: densities of
    ReLU networks have ridges, on which a step in proportion to the gradient, or one that must not go down, gets stuck.
    """
    q = q.double()
    visited, velocity = [q], torch.zeros_like(q[:, :3])
    for step in range(steps):
        with torch.enable_grad():
            rotvec = torch.zeros_like(velocity, requires_grad=True)
            slope = torch.autograd.grad(log_density(multiply(q, rotvec_to_quat(rotvec))[None]).sum(), rotvec)[0]
        velocity = 0.6 * velocity + 0.4 * slope / slope.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        q = multiply(q, rotvec_to_quat(reach * 1e-3 ** (step / steps) * velocity))
        visited.append(q)
    with torch.no_grad():
        each = torch.stack(visited)
        return best_of(each, torch.cat([log_density(one[None]) for one in visited])) if steps else q
