r"""AQuaMaM-MoG, the paper's appendix: the quaternion's components as mixtures of Gaussians through a logistic map.

Component c lies in (-u, u), u the room that the earlier ones left, as $q_c = u \tanh(s / 2)$ (the paper writes
$-u + 2u/(1 + e^{-s})$) with s from a mixture of Gaussians. The room after it is
$u' = \sqrt{u^2 - q_c^2} = u / \cosh(s / 2)$, so $s = 2 \sinh^{-1}(q_c / u')$, which loses nothing near the edge.
The paper's factors $2u / (u^2 - q_c^2)$ and $q_w$ multiply to $8 / (u_y u_z q_w)$. The density is exact: s covers the
line, so q covers the half sphere. It is unbounded where $q_w \to 0$.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from aquamam.baselines.base import Baseline
from aquamam.baselines.encoder import EncoderConfig
from aquamam.geometry.cells import SMALLEST
from aquamam.geometry.directional import draw_normal, draw_uniform
from aquamam.geometry.rotations import canonical, inverse_cdf
from aquamam.network.images import ImageInput
from aquamam.network.model import AQuaMaM, ModelConfig, Prefix
from aquamam.posterior.distribution import Densities, Generator, Images, RotationDistribution, Rotations


@dataclass(frozen=True, kw_only=True)
class MoGConfig(EncoderConfig):
    positive: ClassVar = ("components", "min_std", "octaves", "tokens")
    choices: ClassVar = {"encoder": ("category", "stem", "patches")}  # which give the Transformer tokens

    components: int = 512
    min_std: float = 1e-6  # of a Gaussian in s; for finitely many rotations the likelihood has no other bound
    octaves: int = 6
    tokens: int = 196  # for encoder="category"

    def trunk(self, **own: Any) -> ModelConfig:
        """AQuaMaM's network; its head's outputs are weights, means and log deviations instead of bins."""
        own = {"bins": 3 * self.components, "octaves": self.octaves, "tokens": self.tokens, **own}
        return super().trunk(chart="hemisphere", density="paper", **own)


class AQuaMaMMoG(Baseline):
    """AQuaMaM's Transformer with mixtures of Gaussians for its heads; trained by the likelihood."""

    kind = "mog"
    config: MoGConfig

    def __init__(self, config: MoGConfig):
        super().__init__(config, encoder=AQuaMaM(config.trunk()))

    def posterior(self, images: ImageInput) -> "GaussianSentences":
        return GaussianSentences(self.encoder.encode(images), math.log(self.config.min_std))  # type: ignore[operator]


class Mixture(NamedTuple):
    """Mixtures of Gaussians on the line."""

    log_weight: Float[Tensor, "*batch components"]
    mean: Float[Tensor, "*batch components"]
    log_std: Float[Tensor, "*batch components"]

    def log_prob(self, s: Float[Tensor, "*#batch"]) -> Float[Tensor, "..."]:
        z = (s.unsqueeze(-1) - self.mean) * torch.exp(-self.log_std)
        return (self.log_weight - self.log_std - 0.5 * z.square()).logsumexp(-1) - 0.5 * math.log(2 * math.pi)


class GaussianSentences(RotationDistribution):
    """Three numbers, each from a mixture given the earlier ones."""

    def __init__(self, prefix: Prefix, min_log_std: float):
        super().__init__(prefix.batch, row_floats=10 * prefix.model.config.bins + prefix.row_floats)
        self.prefix, self.min_log_std = prefix, min_log_std

    def _some(self, images: Images) -> "GaussianSentences":
        return GaussianSentences(self.prefix.some(images), self.min_log_std)

    def _mixture(self, outputs: Float[Tensor, "*batch outputs"]) -> Mixture:
        weight, mean, log_std = outputs.double().chunk(3, -1)
        return Mixture(weight.log_softmax(-1), mean, log_std.clamp_min(self.min_log_std))

    def _next(self, seen: Float[Tensor, "rotations batch steps"], past: tuple[Tensor, ...]) -> tuple[Mixture, tuple]:
        chart = torch.zeros(seen.shape[:2], dtype=torch.long, device=seen.device)
        outputs, past = self.prefix.rest(chart, seen.float(), past)
        return self._mixture(outputs), past

    def _log_prob(self, q: Rotations) -> Densities:
        q = canonical(q)
        after_y = torch.hypot(q[..., 2], q[..., 3])
        room = torch.stack([torch.hypot(q[..., 1], after_y), after_y, q[..., 3]], -1).clamp_min(SMALLEST)
        s = 2 * torch.asinh(q[..., :3] / room)
        rest, _ = self._next(q[..., :2], ())
        log_p = self._mixture(self.prefix.first()).log_prob(s[..., 0]) + rest.log_prob(s[..., 1:]).sum(-1)
        return log_p + 3 * math.log(2) - room.log().sum(-1)

    def _sample(self, count: int, generator: Generator) -> Rotations:
        def choose(mixture: Mixture, room: Tensor) -> Tensor:
            log_weight, *others = (part.expand(*room.shape, -1) for part in mixture)
            index = inverse_cdf(log_weight.exp(), draw_uniform((*room.shape, 1), generator, room.device))
            mean, log_std = (part.gather(-1, index).squeeze(-1) for part in others)
            return mean + log_std.exp() * draw_normal(tuple(room.shape), generator, room.device)

        return torch.cat([self._decode(n, choose) for n in self._chunks(count)])

    def _mode(self) -> Float[Tensor, "batch 4"]:
        """Greedy: at each step the Gaussian's mean at which the density of the component is highest."""

        def choose(mixture: Mixture, room: Tensor) -> Tensor:
            candidates = mixture.mean.expand(*room.shape, -1).movedim(-1, 0)  # (components, rotations, batch)
            density = torch.stack([mixture.log_prob(s) for s in candidates])
            # dq/ds = u / (2 cosh^2(s / 2)); log cosh x = |x| + log1p(exp(-2|x|)) - log 2
            half = candidates.abs() / 2
            log_cosh = half + torch.log1p(torch.exp(-2 * half)) - math.log(2)
            best = (density + 2 * log_cosh).argmax(0, keepdim=True)
            return candidates.gather(0, best).squeeze(0)

        return self._decode(1, choose)[0]

    def _decode(self, count: int, choose: Callable[[Mixture, Tensor], Tensor]) -> Tensor:
        """One component after the other; `choose` picks s from a mixture."""
        mixture = self._mixture(self.prefix.first())
        room = torch.ones(count, self._batch, dtype=torch.float64, device=mixture.mean.device)
        components: list[Tensor] = []
        past: tuple[Tensor, ...] = ()
        for c in range(3):
            if c:
                steps, past = self._next(components[-1].unsqueeze(-1), past)
                mixture = Mixture(*(part.squeeze(2) for part in steps))
            s = choose(mixture, room)
            components.append(room * torch.tanh(s / 2))
            room = room / torch.cosh(s / 2)
        q = torch.stack([*components, room], -1)
        return canonical(q / q.norm(dim=-1, keepdim=True)).float()
