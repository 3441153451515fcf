r"""Direct classification on the equivolumetric grid: the explicit version of IPDF, with an exact density.

A linear head gives each of the $72 · 8^k$ cells a probability P; the density is P over its volume $π^2 / (72 · 8^k)$.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from aquamam.baselines.base import Baseline
from aquamam.baselines.encoder import EncoderConfig
from aquamam.geometry.directional import draw_category
from aquamam.geometry.grid import cell_volume, grid_cell_of, grid_points, grid_size, random_in_cell
from aquamam.network.images import ImageInput
from aquamam.posterior.distribution import Densities, Generator, Images, RotationDistribution, Rotations, TopK


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(EncoderConfig):
    choices: ClassVar = {"level": (0, 1, 2, 3, 4)}  # the next has 2.4 million classes, which is why IPDF exists

    level: int = 2  # of the grid: 72, 576, 4,608, 36,864 or 294,912 cells


class Classification(Baseline):
    """One logit a cell."""

    kind = "classification"
    config: ClassificationConfig

    def __init__(self, config: ClassificationConfig):
        super().__init__(config)
        self.head = nn.Linear(config.features, grid_size(config.level))

    def posterior(self, images: ImageInput) -> "CellProbabilities":
        return CellProbabilities(self.head(self.encoder(images)).log_softmax(-1), self.config.level)


class CellProbabilities(RotationDistribution):
    """A density that is constant on each cell of the grid."""

    def __init__(self, log_p: Float[Tensor, "batch cells"], level: int):
        super().__init__(len(log_p), ceiling=-math.log(cell_volume(level)))
        self.log_p, self.level = log_p, level

    def _some(self, images: Images) -> "CellProbabilities":
        return CellProbabilities(self.log_p[images], self.level)

    def _cell(self, q: Float[Tensor, "*batch 4"]) -> tuple[Int64[Tensor, "*batch code"], Float[Tensor, "*batch"]]:
        cell = grid_cell_of(q, self.level)
        return cell[..., None], torch.full(cell.shape, self.ceiling, dtype=torch.float64, device=cell.device)

    def _log_prob(self, q: Rotations) -> Densities:
        return self.log_p.gather(-1, grid_cell_of(q, self.level).T).T.double() + self.ceiling

    def _sample(self, count: int, generator: Generator) -> Rotations:
        cell = draw_category(self.log_p, count, generator)
        return random_in_cell(cell, self.level, generator=generator).float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        return self._topk(1).quaternions[0]

    def _topk(self, k: int) -> TopK:
        """The centres of the k most probable cells and their log-probabilities."""
        best = self.log_p.detach().topk(min(k, self.log_p.shape[-1]), dim=-1)
        return TopK(grid_points(best.indices.T, self.level).float(), best.values.T)
