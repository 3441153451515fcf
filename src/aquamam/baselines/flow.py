r"""A normalising flow on SO(3) (Liu et al. 2023): Moebius couplings and affine layers make rotations uniform.

- **Moebius coupling.** One column c of the rotation matrix stays and the other two turn about it by an angle that
  depends on where they stand. Seen in their plane, with the second one at 1, a Moebius map of the circle with parameter
  ω, |ω| < 1, takes 1 to $(1 - ω) / (1 - \bar ω)$: it turns by $2 \arg(1 - ω)$, always less than half a turn, and
  stretches by $(1 - |ω|^2) / |1 - ω|^2$. A network of c and the image gives K vectors, projected to the plane, and
  weights; angles and stretches are averaged. The angle is continuous on all of SO(3), and the Haar measure is a product
  of c's and the angle's, so the stretch is the whole determinant. The way back is a monotone equation on the circle,
  solved by Newton's method inside a bracket.
- **Quaternion affine.** $q \to W q / |W q|$ with $\ln|\det| = \ln|\det W| - 4 \ln|W q|$, antipodal points staying so.
  The image gives W as two pairs of unit quaternions around four scales, $W q = l' (s ∘ (l q r)) r'$: any W of positive
  determinant, inverted by hand.

Both ways are exact to rounding. Rotations are xyzw, and all maps follow the dtype of q.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from aquamam.baselines.base import Baseline, ConditionedMLP, ascend, best_of, head
from aquamam.baselines.encoder import EncoderConfig
from aquamam.geometry.rotations import LOG_UNIFORM, as_unit_quat, inverse, multiply, quat_to_matrix, random_quat
from aquamam.network.images import ImageInput
from aquamam.posterior.distribution import Densities, Generator, Images, RotationDistribution, Rotations

MAX_RADIUS = 0.99  # of ω: a coupling stretches by at most 199
MAX_LOG_SCALE = 6.0


@dataclass(frozen=True, kw_only=True)
class FlowConfig(EncoderConfig):
    positive: ClassVar = ("couplings", "segments", "width")

    couplings: int = 12  # the original has 21 to 24
    segments: int = 32  # K; the original has 64
    width: int = 64
    ascent_steps: int = 20  # of the prediction, from the likeliest of 256 draws


class MoebiusCoupling(nn.Module):
    """Turn two columns of the rotation matrix about the third, `axis`."""

    def __init__(self, features: int, width: int, segments: int, axis: int):
        super().__init__()
        self.axis, self.segments = axis, segments
        self.net = ConditionedMLP(features, 3, width, 1, 4 * segments)
        with torch.no_grad():  # starts near the identity
            self.net.out.weight.mul_(0.1)
            self.net.out.bias.mul_(0.1)

    def context(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch width"]:
        return self.net.image(features)

    def _circle(self, q: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and the real and imaginary parts of the ω, (*, K) each."""
        R = quat_to_matrix(q)
        fixed, second, third = (R[..., :, (self.axis + i) % 3] for i in range(3))
        outputs = self.net(context, fixed.float()).unflatten(-1, (self.segments, 4)).to(q.dtype)
        v, logit = outputs[..., :3], outputs[..., 3]
        w = MAX_RADIUS * v / (1 + (v.square().sum(-1, keepdim=True) + 1e-12).sqrt())
        return logit.softmax(-1), *((w @ column.unsqueeze(-1)).squeeze(-1) for column in (second, third))

    def _moebius(self, weight: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        stretch = (1 - a.square() - b.square()) / ((1 - a).square() + b.square())
        return (weight * 2 * torch.atan2(-b, 1 - a)).sum(-1), (weight * stretch).sum(-1)

    def forward(self, q: Rotations, context: Float[Tensor, "batch width"]) -> tuple[Rotations, Densities]:
        angle, stretch = self._moebius(*self._circle(q, context))
        return multiply(q, self._about(angle)), stretch.log()

    def inverse(self, q: Rotations, context: Float[Tensor, "batch width"]) -> Rotations:
        """The rotations that `forward` takes to q: t - angle(ω e^{it}) = 0 grows with t from -π to π."""
        weight, a, b = self._circle(q, context)
        t = torch.zeros_like(a[..., 0])
        low, high = t - math.pi, t + math.pi
        settled = torch.finfo(q.dtype).eps ** 0.5  # one more Newton step squares the error
        for _ in range(100):
            cosine, sine = torch.cos(t).unsqueeze(-1), torch.sin(t).unsqueeze(-1)
            angle, slope = self._moebius(weight, cosine * a - sine * b, sine * a + cosine * b)
            excess = t - angle
            low, high = torch.where(excess < 0, t, low), torch.where(excess > 0, t, high)
            newton = t - excess / slope
            done = bool(((newton - t).abs() <= settled).all())
            t = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
            if done:
                break
        return multiply(q, self._about(-t))

    def _about(self, angle: Tensor) -> Tensor:
        parts = [torch.zeros_like(angle)] * 3 + [torch.cos(angle / 2)]
        parts[self.axis] = torch.sin(angle / 2)
        return torch.stack(parts, -1)


class QuaternionAffine(nn.Module):
    """A linear map of quaternions that the image chooses, brought back to the sphere."""

    def __init__(self, features: int):
        super().__init__()
        self.head = head(features, 20)
        with torch.no_grad():
            self.head.bias[[3, 7, 11, 15]] = 1.0  # starts near the identity

    def context(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch 20"]:
        return self.head(features)

    def _parts(self, context: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], Tensor]:
        """Four unit quaternions and log scales of mean zero."""
        quaternions, log_scale = context.to(dtype).split([16, 4], -1)
        log_scale = MAX_LOG_SCALE * torch.tanh(log_scale / MAX_LOG_SCALE)
        quaternions = F.normalize(quaternions.unflatten(-1, (4, 4)), dim=-1)
        return quaternions.unbind(-2), log_scale - log_scale.mean(-1, keepdim=True)

    def forward(self, q: Rotations, context: Float[Tensor, "batch 20"]) -> tuple[Rotations, Densities]:
        (left, right, left2, right2), log_scale = self._parts(context, q.dtype)
        y = log_scale.exp() * multiply(multiply(left, q), right)
        norm = y.norm(dim=-1, keepdim=True)
        return multiply(multiply(left2, y / norm), right2), -4 * norm.squeeze(-1).log()

    def inverse(self, q: Rotations, context: Float[Tensor, "batch 20"]) -> Rotations:
        (left, right, left2, right2), log_scale = self._parts(context, q.dtype)
        y = multiply(multiply(inverse(left2), q), inverse(right2)) * torch.exp(-log_scale)
        return multiply(multiply(inverse(left), y / y.norm(dim=-1, keepdim=True)), inverse(right))


class RotationFlow(Baseline):
    """An affine layer, then couplings about x, y, z by turns with an affine layer after each."""

    kind = "flow"
    config: FlowConfig

    def __init__(self, config: FlowConfig):
        super().__init__(config)
        self.maps = nn.ModuleList([QuaternionAffine(config.features)])
        for i in range(config.couplings):
            self.maps.append(MoebiusCoupling(config.features, config.width, config.segments, i % 3))
            self.maps.append(QuaternionAffine(config.features))

    def posterior(self, images: ImageInput) -> "FlowPosterior":
        features = self.encoder(images)
        return FlowPosterior(self, [layer.context(features) for layer in self.maps])  # type: ignore[operator]

    def objective(self, images: ImageInput, q: Rotations, **options: Any) -> Densities:
        """The log-likelihood in float32: half the cost of `log_prob`'s float64."""
        return self.posterior(images)._log_prob(as_unit_quat(q).float())


class FlowPosterior(RotationDistribution):
    """The uniform distribution drawn back through the flow."""

    def __init__(self, model: RotationFlow, contexts: list[Tensor]):
        kept = 2 * model.config.couplings if contexts[0].requires_grad else 1  # layers, for the backward pass
        super().__init__(len(contexts[0]), row_floats=kept * (16 * model.config.segments + 2 * model.config.width))
        self.model, self.contexts = model, contexts

    def _some(self, images: Images) -> "FlowPosterior":
        return FlowPosterior(self.model, [context[images] for context in self.contexts])

    def _log_prob(self, q: Rotations) -> Densities:
        return self.to_uniform(q)[1] + LOG_UNIFORM

    def to_uniform(self, q: Rotations) -> tuple[Rotations, Densities]:
        """The whole flow and its log-determinant."""
        total = torch.zeros_like(q[..., 0])
        for layer, context in zip(self.model.maps, self.contexts):
            q, log_det = layer(q, context)
            total = total + log_det
        return q, total

    def from_uniform(self, q: Rotations) -> Rotations:
        for layer, context in zip(reversed(self.model.maps), reversed(self.contexts)):  # type: ignore[call-overload]
            q = layer.inverse(q, context)  # type: ignore[operator]
        return q

    def _sample(self, count: int, generator: Generator) -> Rotations:
        device = self.contexts[0].device
        q = random_quat((count, self._batch), generator=generator, dtype=torch.float64, device=device)
        return torch.cat([self.from_uniform(part) for part in q.split(self._chunks(count))]).float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        """The likeliest of 256 draws with a fixed seed, climbed on from."""
        q = self._sample(256, torch.Generator().manual_seed(0)).double()
        return ascend(self._log_prob, best_of(q, self._log_probs(q)), self.model.config.ascent_steps).float()
