r"""Mixtures of kernels on SO(3), with exact densities and exact draws."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from aquamam.geometry.directional import draw_category, draw_uniform, sample_bingham
from aquamam.geometry.rotations import LOG_UNIFORM, multiply, random_quat
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.modes import angles_deg

NEIGHBOURS = 12  # a kernel is as wide as its so-manieth neighbour is far
NARROWEST, WIDEST = math.radians(0.05), math.radians(40)  # standard deviations of kernels


class KernelMixture(RotationDistribution):
    r"""Equal parts of kernels $\propto \exp(κ \cos θ)$, θ the angle to a centre and $κ = 1 / σ^2$, and a share that is uniform.

    Near the centre it is a Gaussian of standard deviation σ about every axis; its constant $π^2 e^{-κ} (I_0(κ) - I_1(κ))$ is exact for all σ.
    """

    def __init__(
        self,
        centres: Float[Tensor, "kernels batch 4"],
        sigma: Float[Tensor, "kernels batch"],  # radians
        uniform: float | int = 0.0,
    ):
        super().__init__(centres.shape[1])
        self.centres, self.uniform = centres.double(), uniform
        self.sigma, self.kappa = sigma.double(), sigma.double() ** -2
        constant = torch.special.i0e(self.kappa) - torch.special.i1e(self.kappa)
        self._log_height = -2 * math.log(math.pi) - constant.log() - math.log(len(centres))

    def _rotations_per_chunk(self) -> int:
        return max(1, 4_000_000 // max(self.centres[..., 0].numel(), 1))

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        square = torch.einsum("rbi,kbi->rbk", q.double(), self.centres).square()
        log_p = (self._log_height.T + 2 * self.kappa.T * (square - 1)).logsumexp(-1)  # cos θ = 2 (q · c)^2 - 1
        if self.uniform == 0:
            return log_p
        everywhere = torch.full_like(log_p, math.log(self.uniform) + LOG_UNIFORM)
        return torch.logaddexp(log_p + math.log1p(-self.uniform) if self.uniform < 1 else log_p - torch.inf, everywhere)

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        flat = self.centres.new_zeros(self._batch, len(self.centres))
        which = draw_category(flat, count, generator)
        rows = torch.arange(self._batch, device=which.device)
        kappa = self.kappa[which, rows]
        z = torch.stack([-2 * kappa] * 3 + [torch.zeros_like(kappa)], -1)
        q = multiply(self.centres[which, rows], sample_bingham(z, generator=generator))
        if self.uniform:
            anywhere = random_quat((count, self._batch), generator=generator, dtype=q.dtype, device=q.device)
            q = torch.where(draw_uniform(which.shape, generator, q.device).lt(self.uniform).unsqueeze(-1), anywhere, q)
        return q

    def _mode(self) -> Float[Tensor, "batch 4"]:
        best = self._log_prob(self.centres).argmax(0)
        return self.centres[best, torch.arange(self._batch, device=best.device)].float()


def crowding(q: Float[Tensor, "points batch 4"], neighbours: int = NEIGHBOURS) -> Float64[Tensor, "points batch"]:
    """How far the so-manieth neighbour of each point is, in radians: a width for kernels that follows modes of any width."""
    near = min(neighbours, len(q) - 1)
    columns = [torch.deg2rad(angles_deg(x, x)).kthvalue(near + 1, -1).values for x in q.unbind(1)]
    far = torch.stack(columns, 1) if columns else q[..., 0].double()
    return far.clamp(NARROWEST, WIDEST)
