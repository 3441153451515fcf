"""What the baselines have in common: an encoder, a loss, and predictions where no formula gives the mode."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from aquamam.baselines.encoder import Encoder, EncoderConfig
from aquamam.geometry.rotations import multiply, rotvec_to_quat
from aquamam.network.images import ImageInput
from aquamam.network.model import RotationModel
from aquamam.posterior.distribution import RotationDistribution


class Baseline(RotationModel):
    """A model with an encoder that turns an image into one feature; a system adds its head."""

    def __init__(self, config: EncoderConfig, encoder: nn.Module | None = None):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config) if encoder is None else encoder

    def prepare(self, images: ImageInput) -> Tensor:
        return self.encoder.prepare(images)  # type: ignore[operator]


class ConditionedMLP(nn.Module):
    """A ReLU network of (image feature, query) whose first layer is split: the image's part is computed once for all its queries."""

    def __init__(self, features: int, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        self.image = nn.Linear(features, width)
        self.query = nn.Linear(inputs, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, outputs)

    def context(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch width"]:
        """The image's part of the first layer."""
        return self.image(features)

    def forward(
        self, context: Float[Tensor, "batch width"], query: Float[Tensor, "*rows inputs"]
    ) -> Float[Tensor, "... outputs"]:
        """Queries (*, batch, inputs), or (*, 1, inputs) for queries that all images share."""
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


def best_draw(
    posterior: RotationDistribution, draws: int = 256, ascent_steps: int = 0, seed: int = 0
) -> Float[Tensor, "batch 4"]:
    """The draw of highest density among `draws` with a fixed seed, optionally climbed on from: a prediction where no formula gives one."""
    q = posterior._sample(draws, torch.Generator().manual_seed(seed))
    parts = q.double().split(posterior._rotations_per_chunk())
    best = torch.cat([posterior._log_prob(part) for part in parts]).argmax(0)
    return ascend(posterior._log_prob, q[best, torch.arange(q.shape[1], device=q.device)], ascent_steps)


def ascend(
    log_density: Callable[[Tensor], Tensor], q: Float[Tensor, "batch 4"], steps: int, reach: float = 0.05
) -> Float[Tensor, "batch 4"]:
    """Climb log_density ((1, batch, 4) -> (1, batch)) from q by gradient steps on the group; the best rotation visited is returned.

    Steps have a set length, `reach` radians at first and a thousandth of it at last, and some momentum: densities of ReLU networks have
    ridges, on which a step in proportion to the gradient, or one that must not go down, gets stuck.
    """
    q = q.double()
    with torch.no_grad():
        top = log_density(q[None])[0].double()
    best, velocity = q, torch.zeros_like(q[:, :3])
    for step in range(steps):
        with torch.enable_grad():
            turn = torch.zeros_like(velocity, requires_grad=True)
            slope = torch.autograd.grad(log_density(multiply(q, rotvec_to_quat(turn))[None]).sum(), turn)[0]
        velocity = 0.6 * velocity + 0.4 * slope / slope.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        with torch.no_grad():
            q = multiply(q, rotvec_to_quat(reach * 1e-3 ** (step / steps) * velocity))
            value = log_density(q[None])[0].double()
            best, top = torch.where((value > top)[:, None], q, best), torch.maximum(value, top)
    return best
