r"""Mixtures of kernels on SO(3), with exact densities and exact draws."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from aquamam.geometry.directional import draw_category, draw_uniform, sample_bingham
from aquamam.geometry.rotations import LOG_UNIFORM, multiply, random_quat
from aquamam.posterior.distribution import Densities, Generator, Images, RotationDistribution, Rotations

NEIGHBOURS = 12
NARROWEST, WIDEST = math.radians(0.05), math.radians(40)  # of kernels


class KernelMixture(RotationDistribution):
    r"""Equal parts of kernels $\propto \exp(κ \cos θ)$, θ the angle to a centre and $κ = 1 / σ^2$, and a uniform share.

    Near the centre a kernel is a Gaussian of standard deviation σ (radians) about every axis; its constant
    $π^2 e^{-κ} (I_0(κ) - I_1(κ))$ is exact for all σ.
    """

    def __init__(self, centres: Rotations, sigma: Densities, uniform: float | int = 0.0):
        """uniform: its share, less than 1."""
        super().__init__(centres.shape[1], row_floats=4 * len(centres))
        self.centres, self.sigma, self.uniform = centres.double(), sigma.double(), uniform
        self.kappa = self.sigma**-2
        constant = torch.special.i0e(self.kappa) - torch.special.i1e(self.kappa)
        self._log_height = LOG_UNIFORM - constant.log() - math.log(len(centres)) + math.log1p(-uniform)

    def _some(self, images: Images) -> "KernelMixture":
        return KernelMixture(self.centres[:, images], self.sigma[:, images], self.uniform)

    def _log_prob(self, q: Rotations) -> Densities:
        square = torch.einsum("rbi,kbi->rbk", q.double(), self.centres).square()
        log_p = (self._log_height.T + 2 * self.kappa.T * (square - 1)).logsumexp(-1)  # cos θ = 2 (q · c)^2 - 1
        if self.uniform == 0:
            return log_p
        return torch.logaddexp(log_p, log_p.new_tensor(LOG_UNIFORM + math.log(self.uniform)))

    def _sample(self, count: int, generator: Generator) -> Rotations:
        which = draw_category(torch.zeros_like(self.kappa.T), count, generator)
        rows = torch.arange(self._batch, device=which.device)
        kappa = self.kappa[which, rows]
        z = torch.stack([-2 * kappa] * 3 + [torch.zeros_like(kappa)], -1)
        q = multiply(self.centres[which, rows], sample_bingham(z, generator=generator))
        anywhere = random_quat((count, self._batch), generator=generator, dtype=q.dtype, device=q.device)
        lost = draw_uniform(which.shape, generator, q.device) < self.uniform
        return torch.where(lost.unsqueeze(-1), anywhere, q)

    def _mode(self) -> Float[Tensor, "batch 4"]:
        best = self._log_prob(self.centres).argmax(0)
        return self.centres[best, torch.arange(self._batch, device=best.device)].float()


def neighbour_distance(q: Float[Tensor, "points batch 4"]) -> Float64[Tensor, "points batch"]:
    """How far the twelfth neighbour of each point is, in radians: a kernel's width that follows modes of any width."""
    each = q.double().transpose(0, 1)
    angle = 2 * torch.arccos((each @ each.mT).abs().clamp_max(1))
    return angle.kthvalue(min(NEIGHBOURS + 1, len(q)), -1).values.T.clamp(NARROWEST, WIDEST)
