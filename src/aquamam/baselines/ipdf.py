r"""IPDF (Murphy et al. 2021) as the paper uses it: a network scores (image, rotation) and a grid normalises the scores.

The nine entries of the rotation matrix, encoded with sines and cosines of three octaves, and the image's
feature enter a ReLU network of width 256. Training classifies the true rotation among 4,095 uniform ones. Then

$$p(q) = \frac{e^{f(q)}}{V \sum_i e^{f(g_i)}}, \qquad V = π^2 / N,$$

over the equivolumetric grid $g_1 \dots g_N$ of $N = 72 · 8^k$ rotations, which stands still (`normaliser="grid"`:
computed once for an image, then one pass of the network for a rotation) or is rotated so that q is one of its
rotations (`"truth"`: the paper's, a whole grid for each rotation, at most $\ln(1/V)$). Both are Riemann sums of the
same integral: they agree, and integrate to one, as far as the grid resolves the scores. Sharper scores than the grid
make `"grid"` miss or overcount peaks and `"truth"` lose mass.

Samples are grid rotations (`samples="points"`, the paper's) or uniform in their cells (`"cells"`). The grid is visited
in pieces: memory does not grow with k.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aquamam.baselines.base import Baseline, ConditionedMLP, ascend
from aquamam.baselines.encoder import EncoderConfig
from aquamam.errors import require
from aquamam.geometry.directional import draw_category, draw_uniform
from aquamam.geometry.grid import cell_volume, grid_points, grid_size, random_in_cell, so3_grid_chunks
from aquamam.geometry.rotations import (
    LOG_UNIFORM,
    as_unit_quat,
    inverse,
    inverse_cdf,
    multiply,
    quat_to_matrix,
    random_quat,
    rotvec_to_quat,
)
from aquamam.network.images import ImageInput
from aquamam.posterior.distribution import CHUNK_FLOATS, Densities, Generator, Images, RotationDistribution, Rotations

# Scores of one piece of the grid: 16,384 rows of 256 floats are 16 MB, which a processor's last cache nearly holds.
ROWS_AT_ONCE = 2**14
TRUTHS_AT_ONCE = 64  # rotations that share one walk over the grid when it is turned to each of them


@dataclass(frozen=True, kw_only=True)
class IPDFConfig(EncoderConfig):
    """Everything a checkpoint needs to rebuild the network, and how its posterior uses the grid."""

    positive: ClassVar = ("width", "octaves", "negatives")
    choices: ClassVar = {"normaliser": ("grid", "truth"), "samples": ("cells", "points")}

    width: int = 256
    depth: int = 3  # hidden layers after the split one
    octaves: int = 3  # L
    negatives: int = 4095
    shared_negatives: bool = False  # one set for the whole batch instead of one an image
    near_negatives: float = 0.0  # share of a shared set that is drawn about the batch's true rotations (`Proposal`)
    level: int = 3  # k: 36,864 rotations; the paper evaluates at 5 (2,359,296)
    normaliser: str = "grid"
    samples: str = "cells"
    ascent_steps: int = 0  # of the prediction, from the best rotation of the grid

    def __post_init__(self) -> None:
        super().__post_init__()
        near, shared, depth, steps = self.near_negatives, self.shared_negatives, self.depth, self.ascent_steps
        require(0 <= near < 1, f"near_negatives must be a share from 0 to less than 1, got {near}; try 0.5.")
        require(shared or not near, "near negatives are one set for the whole batch; set shared_negatives=true, too.")
        require(min(depth, steps) >= 0, f"depth and ascent_steps must not be negative, got {depth}, {steps}.")
        grid_size(self.level)


def encode_rotation(q: Float[Tensor, "*batch 4"], octaves: int) -> Float[Tensor, "*batch inputs"]:
    r"""$[\sin(2^l π R), \cos(2^l π R)]_{l < L}$ of the nine matrix entries R of xyzw quaternions, float32.

    Higher octaves follow from the first by doubling the angle, three times cheaper than from the sine function.
    """
    phase = math.pi * quat_to_matrix(q.float()).flatten(-2)
    sine, cosine = torch.sin(phase), torch.cos(phase)
    waves = [sine, cosine]
    for _ in range(octaves - 1):
        sine, cosine = 2 * sine * cosine, 1 - 2 * sine.square()
        waves += [sine, cosine]
    return torch.cat(waves, -1)


class IPDF(Baseline):
    """`model(images)` uses the grid as the config says; `model.posterior(images, level=5)` asks otherwise."""

    kind = "ipdf"
    config: IPDFConfig

    def __init__(self, config: IPDFConfig):
        super().__init__(config)
        self.net = ConditionedMLP(config.features, 18 * config.octaves, config.width, config.depth, 1)

    def posterior(self, images: ImageInput, **options: Any) -> "IPDFPosterior":
        """The posterior, with other options (level, normaliser, samples, ascent_steps) than the config's if given."""
        return IPDFPosterior(self, self.net.image(self.encoder(images)), replace(self.config, **options))

    def scores(
        self, context: Float[Tensor, "batch width"], q: Float[Tensor, "rotations images 4"], *, light: bool = False
    ) -> Densities:
        """f(image, rotation) for xyzw rotations of each image, or (rotations, 1, 4) for those that all images share.

        light: activations are recomputed in the backward pass instead of kept.
        """
        if light and torch.is_grad_enabled():
            return checkpoint(self.scores, context, q, use_reentrant=False)
        return self.net(context, encode_rotation(q, self.config.octaves)).squeeze(-1)

    def objective(self, images: ImageInput, q: Rotations, *, generator: Generator = None, **options: Any) -> Densities:
        r"""Negative sampling: $f_{true} - \ln Z$, where $Z = \frac{1}{1 + K} \sum e^f / p$ over the truth and K
        negatives estimates the volume under the scores, p being the density that the negatives are drawn from.

        Uniform ones, $p = 1 / π^2$, are the paper's, drawn anew for each image and shared by its true rotations.
        """
        context, unit = self.net.image(self.encoder(images)), as_unit_quat(q)
        negatives, batch = self.config.negatives, len(context)
        true = self.scores(context, unit)
        if self.config.near_negatives:
            proposal = Proposal(unit.reshape(-1, 4).unique(dim=0), self.config.near_negatives)
            drawn = proposal.draw(negatives, generator)[:, None]
            weight, own = -proposal.log_density(drawn[:, 0])[:, None].to(true), -proposal.peak
        else:
            shape = (negatives, 1 if self.config.shared_negatives else batch)
            drawn = random_quat(shape, generator=generator, device=context.device)
            weight, own = true.new_full((negatives, 1), -LOG_UNIFORM), -LOG_UNIFORM
        rows = max(1, CHUNK_FLOATS // (2 * self.config.width * max(batch, 1)))
        pieces = zip(drawn.split(rows), weight.split(rows))
        parts = [(self.scores(context, q, light=rows < negatives) + w).logsumexp(0) for q, w in pieces]
        volume = torch.logaddexp(true + own, torch.stack(parts).logsumexp(0))
        return true - volume + math.log(1 + negatives)


class Proposal:
    """Rotations of which a share lies about some given ones, at angles of every order of magnitude; the rest is
    uniform.

    Few uniform negatives fall into a narrow peak, so that nothing tells a network how much volume its peaks have.
    """

    LEAST = math.radians(0.2)  # angles are log-uniform from here to pi

    def __init__(self, centres: Float[Tensor, "centres 4"], share: float):
        self.centres, self.share = centres, share

    def draw(self, count: int, generator: Generator) -> Float[Tensor, "count 4"]:
        near, device = round(self.share * count), self.centres.device
        axis = torch.randn((near, 3), generator=generator, dtype=torch.float64, device=device)
        u = draw_uniform((near, 2), generator, device)
        angle = self.LEAST * (math.pi / self.LEAST) ** u[:, :1]
        step = rotvec_to_quat(axis / axis.norm(dim=-1, keepdim=True) * angle)
        about = multiply(self.centres[(u[:, 1] * len(self.centres)).long()], step)
        anywhere = random_quat((count - near,), generator=generator, dtype=torch.float64, device=device)
        return torch.cat([about, anywhere])

    def log_density(self, q: Float[Tensor, "count 4"]) -> Float[Tensor, "count"]:
        """With respect to volume pi^2."""
        angle = 2 * torch.acos((q.double() @ self.centres.mT).abs().clamp_max(1))
        near = self._radial(angle.clamp_min(self.LEAST)).logsumexp(-1)  # nearer ones are drawn by rounding only
        return torch.logaddexp(near, near.new_full((), math.log(1 - self.share) + LOG_UNIFORM))

    @property
    def peak(self) -> float:
        """The log density just beside one of the rotations."""
        return float(self._radial(torch.tensor(self.LEAST, dtype=torch.float64)))

    def _radial(self, angle: Tensor) -> Tensor:
        """What each of the given rotations adds to the density, in logarithm, at an angle from it: a share of all
        rotations between two angles is the integral of (1 - cos) / pi."""
        share = 2 * (angle / 2).sin().square() / math.pi
        radial = -(angle.log() + math.log(math.log(math.pi / self.LEAST)) + share.log()) + LOG_UNIFORM
        return radial - math.log(len(self.centres)) + math.log(self.share)


class IPDFPosterior(RotationDistribution):
    """Scores on a grid as a distribution; see the module's docstring for the options."""

    def __init__(self, model: IPDF, context: Float[Tensor, "batch width"], config: IPDFConfig):
        self._log_volume, turned = math.log(cell_volume(config.level)), config.normaliser == "truth"
        row_floats = CHUNK_FLOATS // TRUTHS_AT_ONCE if turned else 6 * config.width
        super().__init__(len(context), ceiling=-self._log_volume if turned else math.inf, row_floats=row_floats)
        self.model, self.context, self.config = model, context, config
        self._rows = max(1, ROWS_AT_ONCE // max(self._batch, 1))
        self._summary: tuple[Tensor, Tensor] | None = None

    def _some(self, images: Images) -> "IPDFPosterior":
        return IPDFPosterior(self.model, self.context[images], self.config)

    def scores(self, q: Float[Tensor, "rotations images 4"]) -> Densities:
        return self.model.scores(self.context, q).double()

    def grid_scores(self, turn: Float[Tensor, "batch 4"] | None = None) -> Iterator[Float[Tensor, "piece batch"]]:
        """Scores of the grid, or of the grid after a turn for each image."""
        for piece in so3_grid_chunks(self.config.level, chunk=self._rows):
            q = piece[:, None].to(self.context.device)
            yield self.model.scores(self.context, q if turn is None else multiply(q, turn), light=True).double()

    def summary(self) -> tuple[Float[Tensor, "pieces batch"], Int64[Tensor, "batch"]]:
        """What one pass over the grid leaves: the log of the sum of exp(score) over each piece, by which to normalise
        and to know which pieces to sample from; and the index of the best rotation."""
        if self._summary is None or (torch.is_grad_enabled() and not self._summary[0].requires_grad):
            masses, tops = [], []
            for scores in self.grid_scores():
                masses.append(scores.logsumexp(0))
                tops.append(scores.detach().max(0))
            piece = torch.stack([top.values for top in tops]).argmax(0, keepdim=True)
            place = torch.stack([top.indices for top in tops]).gather(0, piece)
            self._summary = torch.stack(masses), (piece * self._rows + place)[0]
        return self._summary

    def _log_prob(self, q: Rotations) -> Densities:
        if self.config.normaliser == "grid":
            return self.scores(q) - self.summary()[0].logsumexp(0) - self._log_volume
        # as if each rotation had an image of its own, whose grid is turned to end at it
        each = IPDFPosterior(self.model, self.context.repeat(len(q), 1), self.config)
        last = grid_points(torch.tensor(grid_size(self.config.level) - 1), self.config.level).to(q.device)
        masses, score = [], q.new_zeros(0)
        for scores in each.grid_scores(multiply(inverse(last), q.reshape(-1, 4))):
            masses.append(scores.logsumexp(0))
            score = scores[-1]
        return (score - torch.stack(masses).logsumexp(0)).reshape(q.shape[:2]) - self._log_volume

    def _sample(self, count: int, generator: Generator) -> Rotations:
        """Draw a piece of the grid by its mass, then a rotation in it: only drawn pieces are scored a second time."""
        index = torch.zeros(count, self._batch, dtype=torch.long, device=self.context.device)
        piece = draw_category(self.summary()[0].T.log_softmax(-1), count, generator)
        u = draw_uniform((count, self._batch), generator, index.device)
        for number in piece.unique().tolist():
            start = number * self._rows
            members = torch.arange(start, min(start + self._rows, grid_size(self.config.level)))
            q = grid_points(members, self.config.level)[:, None].to(index.device)
            found = inverse_cdf(self.scores(q).softmax(0).T, u.T).T
            index = torch.where(piece == number, start + found, index)
        if self.config.samples == "cells":
            return random_in_cell(index, self.config.level, generator=generator).float()
        return grid_points(index, self.config.level).float()

    def _mode(self) -> Float[Tensor, "batch 4"]:
        """The grid's best rotation, optionally climbed on from."""
        best = grid_points(self.summary()[1], self.config.level)
        return ascend(self.scores, best, self.config.ascent_steps, reach=0.5 / 2**self.config.level).float()
