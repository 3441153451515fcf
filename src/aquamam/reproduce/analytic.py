r"""Distributions over rotations whose density is known: the set that Liu et al. (2023) use, redrawn as mixtures of Bingham distributions.

Each is a `BinghamMixture`, so densities are exact up to the constant's quadrature (6e-10) and draws are exact:

- peak: one rotation, with a spread;
- cone: all turns about one axis, $z = (-κ, -κ, 0, 0)$ turned to the axis, which is a great circle of quaternions;
- cube: the 24 rotations of a cube;
- line: turns about one axis by -90 to 90 degrees, 61 components that lie 3 degrees apart;
- point: one rotation and no spread. It has no density; a system's likelihood there is bounded by its resolution alone.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aquamam.baselines.bingham import BinghamMixture
from aquamam.errors import InputError
from aquamam.geometry.rotations import geodesic_angle, multiply, rotvec_to_quat
from aquamam.geometry.symmetry import SymmetryGroup

SPREAD = math.radians(4)  # of a mode: the standard deviation of the rotation vector's components
NAMES = ("peak", "cone", "cube", "line", "point")


@dataclass(frozen=True, eq=False)
class Analytic:
    """A distribution, and the rotations that stand for its modes or its curve."""

    name: str
    about: str
    truth: BinghamMixture | None  # None where the anchors are all there is, each as probable as the others
    anchors: Float[Tensor, "anchors 4"]  # float64

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "count 4"]:
        """Exact draws, xyzw."""
        if self.truth is None:
            return self.anchors[torch.randint(len(self.anchors), (count,), generator=generator)].float()
        return self.truth.sample((count,), generator=generator)[:, 0]

    def distance(self, q: Float[Tensor, "n 4"]) -> tuple[Float[Tensor, "n"], Int[Tensor, "n"]]:
        """Radians to the nearest anchor, and which one it is."""
        nearest = [geodesic_angle(part.double()[:, None], self.anchors[None]).min(1) for part in q.split(4096)]
        return torch.cat([n.values for n in nearest]), torch.cat([n.indices for n in nearest])

    @cached_property
    def shares(self) -> np.ndarray:
        """The anchors' shares of the truth: equal where there is no spread, else from 100,000 draws."""
        if self.truth is None:
            return np.full(len(self.anchors), 1 / len(self.anchors))
        drawn = self.sample(100_000, torch.Generator().manual_seed(99))
        return self.distance(drawn)[1].bincount(minlength=len(self.anchors)).numpy() / len(drawn)

    def entropy(self, samples: int = 100_000, seed: int = 1) -> tuple[float, float]:
        """Differential entropy (volume pi^2) and the Monte Carlo estimate's standard error; minus infinity for a point."""
        if self.truth is None:
            return -math.inf, 0.0
        found = self.truth.entropy(samples, generator=torch.Generator().manual_seed(seed))
        return float(found.value), float(found.standard_error)


def _base() -> Float[Tensor, "4"]:
    """A rotation that is nothing special, so that no chart and no grid is favoured."""
    return rotvec_to_quat(torch.tensor([0.7, -1.1, 0.4], dtype=torch.float64))


def _mixture(centres: Float[Tensor, "components 4"], z: Tensor) -> BinghamMixture:
    """Components of equal weight and shape z at these rotations."""
    count = len(centres)
    left = centres[None]
    right = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64).expand(1, count, 4)
    weight = torch.full((1, count), -math.log(count), dtype=torch.float64)
    return BinghamMixture(weight, left, right, z.expand(1, count, 4))


def _turns(degrees: Tensor) -> Float[Tensor, "n 4"]:
    angle = torch.deg2rad(degrees.double())
    return rotvec_to_quat(torch.stack([torch.zeros_like(angle), torch.zeros_like(angle), angle], -1))


def analytic(name: str) -> Analytic:
    """The distribution of that name."""
    # a component of the quaternion is half of the rotation vector's: exp(-k y^2) has variance 1 / (2 k) = (spread / 2)^2
    k = 2 / SPREAD**2
    round_ = torch.tensor([-k, -k, -k, 0], dtype=torch.float64)
    base = _base()
    spread = f"{math.degrees(SPREAD):.0f}°"
    if name == "peak":
        return Analytic(name, f"one rotation, spread {spread}", _mixture(base[None], round_), base[None])
    if name == "cone":
        z = torch.tensor([-k, -k, 0, 0], dtype=torch.float64)
        anchors = multiply(base, _turns(torch.arange(0, 360, 5)))
        return Analytic(name, f"all turns about an axis, spread {spread}", _mixture(base[None], z), anchors)
    if name == "cube":
        centres = multiply(base, SymmetryGroup.octahedral().elements.double())
        return Analytic(name, f"24 rotations of a cube, spread {spread} each", _mixture(centres, round_), centres)
    if name == "line":
        centres = multiply(base, _turns(torch.linspace(-90, 90, 61)))
        return Analytic(
            name, f"turns by -90° to 90° about an axis, spread {spread}", _mixture(centres, round_), centres
        )
    if name == "point":
        return Analytic(name, "one rotation, no spread", None, base[None])
    raise InputError(f"distributions are {', '.join(NAMES)}, got {name!r}.")
