"""Fitting a model to (category, rotation) pairs: exact expected loss or random batches, resumable to the bit.

The paper's toy data has 63 pairs and six categories, so its expected loss is a sum of 63 terms. Each category is
encoded once a step, and AQuaMaM's head reads only the pairs. A random batch is the same sum with drawn multiplicities
as weights.
"""

import io
import math
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils import parametrize
from tqdm import tqdm

from aquamam.errors import require
from aquamam.files import write_bytes
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import as_unit_quat
from aquamam.network.model import AQuaMaM, RotationModel
from aquamam.training.pyramid import add_pyramids, folded
from aquamam.training.runfolder import Progress

SAVE_EVERY = 20.0  # seconds between two saved states
PATIENCE = 5  # plateau: epochs without improvement before the rate is halved


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rotations of each category side by side, and their probabilities: zero fills columns with fewer."""

    q: Float[Tensor, "rotations categories 4"]  # xyzw, float64
    weight: Float[Tensor, "rotations categories"]  # float64, sums to one

    @classmethod
    def uniform(cls, rotations: list[Tensor]) -> "Pairs":
        """Each category equally likely, and in it each of its rotations: the paper's hierarchical model."""
        q = torch.tensor([0.0, 0, 0, 1]).double().repeat(max(map(len, rotations)), len(rotations), 1)
        weight = torch.zeros(q.shape[:2], dtype=torch.float64)
        for i, own in enumerate(rotations):
            q[: len(own), i] = as_unit_quat(own)
            weight[: len(own), i] = 1 / (len(rotations) * len(own))
        return cls(q, weight)

    @property
    def categories(self) -> int:
        return self.q.shape[1]

    @property
    def real(self) -> Bool[Tensor, "rotations categories"]:
        """Which of the rotations are pairs."""
        return self.weight > 0

    def of(self, category: int) -> Float[Tensor, "rotations 4"]:
        """The rotations of one category."""
        return self.q[self.real[:, category], category]

    def mean(self, values: Float[Tensor, "rotations categories"]) -> float:
        """Expectation over the pairs."""
        return float((self.weight * values.double())[self.real].sum())

    @cached_property
    def cumulative(self) -> np.ndarray:
        """Of the flattened probabilities."""
        return self.weight.flatten().cumsum(0).numpy()

    def batch(self, size: int, random: np.random.Generator) -> "Pairs":
        """Random draws: how often each pair was drawn, without rows of which none was."""
        drawn = np.searchsorted(self.cumulative, self.cumulative[-1] * random.random(size), side="right")
        drawn, counts = np.unique(drawn, return_counts=True)
        rows, row = np.unique(drawn // self.categories, return_inverse=True)
        weight = torch.zeros(len(rows), self.categories, dtype=torch.float64)
        weight[row, drawn % self.categories] = torch.from_numpy(counts / size)
        return Pairs(self.q[rows], weight)

    def ceilings(self, cells: Cells) -> tuple[float, float]:
        """The largest mean log-probability of sentences, each token's best distribution given what a network sees, and
        the largest mean log density."""
        weight, category = self.weight[self.real], self.real.nonzero()[:, 1]
        point = cells.chart.split(self.q[self.real])
        cell = cells.locate(point)
        seen = cells.seen(point.u[:, :2], cell[:, :2])
        # what the network knows and the tokens, in turn; pairs that agree in the first columns are one case to it
        columns = torch.stack([category, point.chart, cell[:, 0], seen[:, 0], cell[:, 1], seen[:, 1], cell[:, 2]], 1)

        def log_mass(known: int) -> Tensor:
            same = (columns[:, None, :known] == columns[None, :, :known]).all(-1)
            return (same.double() @ weight).log()

        tokens = sum(log_mass(after) - log_mass(before) for before, after in ((1, 3), (4, 5), (6, 7)))
        sentence = float((weight * tokens).sum())
        return sentence, sentence + float((weight * cells.log_factor(point, cell)).sum())


def sentence_log_probs(model: AQuaMaM, pairs: Pairs) -> Float[Tensor, "pairs"]:
    """Log-probabilities of the real pairs' sentences; each category is encoded once, the head reads only these."""
    cells, device = model.cells, model.start.device
    point = cells.chart.split(pairs.q)
    cell = cells.locate(point)
    seen = cells.seen(point.u[..., :2], cell[..., :2]).float()
    prefix = model.encode(torch.arange(pairs.categories))
    states, _ = prefix.states(point.chart.to(device), seen.to(device))
    real = _, category = tuple(index.to(device) for index in pairs.real.nonzero(as_tuple=True))
    states, bins, chart = states[real], cell.to(device)[real], point.chart.to(device)[real]
    log_p = prefix.first().log_softmax(-1)[category, chart * cells.bins + bins[:, 0]]
    for c in (1, 2):
        logits = cells.restrict(model.head(states[:, c - 1]), bins[:, :c])
        log_p = log_p - F.cross_entropy(logits, bins[:, c], reduction="none")
    return log_p


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How to fit; a saved state continues only under the same settings."""

    batches: Literal["expected", "sampled"] = "expected"  # the exact expected loss, or random batches
    batch_size: int = 128  # for sampled batches
    steps: int = 700
    seconds: float = 0.0  # of CPU time, instead of steps
    lr: float = 3e-3  # the largest
    decay: Literal["exponential", "cosine", "plateau"] = "exponential"  # plateau: halved where nothing improves
    warm_up: float = 0.1  # share of the fit
    final: float = 0.01  # rate at the end, as a share of the largest
    epoch: int = 313  # steps; plateau only
    beta2: float = 0.95
    eps: float = 1e-12
    clip: float = 0.0  # largest norm of the gradient; 0 is none
    component_rate: float = 10.0  # learning rate of the component embeddings g, as a multiple of lr
    head_rate: float = 3.0  # and of the head
    pyramid: bool = False  # AQuaMaM's heads learn as sums of ever coarser rows, as `aquamam train` does
    seed: int = 0

    def __post_init__(self) -> None:
        good = 0 < self.lr < math.inf and self.steps > 0
        require(good, f"lr and steps must be positive numbers, got {self.lr} and {self.steps}.")

    def rate(self, progress: float) -> float:
        """The learning rate: up in a line, then down exponentially or, from the start, along a cosine."""
        if self.decay == "plateau":
            return self.lr
        up = min(1.0, 0.04 + 0.96 * progress / self.warm_up)
        down = self.final ** max(0.0, (progress - self.warm_up) / (1 - self.warm_up))
        if self.decay == "cosine":
            down = self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
        return self.lr * up * down


# Ours. Nearly all bins never occur, and their gradients shrink with their probability, so Adam must forget large
# gradients soon (beta2) and see tiny ones (eps); a larger rate for the head pushes them down. Two rotations of the last
# viewpoint differ by 1.7e-4 in q_x: telling them apart takes large weights in g (its rate) and the early decay.
FAST = FitConfig()
PLAIN = replace(FAST, eps=1e-8, component_rate=1.0, head_rate=1.0)
# Section A.5.1 of the paper: 624 epochs of 40,000 samples.
PAPER = replace(PLAIN, batches="sampled", steps=624 * 313, lr=1e-4, decay="plateau", beta2=0.999, eps=1e-9)


class Fit:
    """One fit of a model to pairs, whose result is `model`.

    `curve` holds the loss before each step, AQuaMaM's NLL of a sentence.
    """

    def __init__(self, model: RotationModel, data: Pairs, config: FitConfig, state: Path | None = None):
        if config.pyramid:
            add_pyramids(model, fresh=True)
        self.model, self.data, self.config, self.state = model, data, config, state
        self.identity = {"fit": asdict(config), "model": model.config.to_dict()}
        rates = {"components": config.component_rate, "head": config.head_rate, "first_head": config.head_rate}
        by_rate: dict[float, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            rate = getattr(parameter, "rate", rates.get(name.split(".")[0], 1.0))
            by_rate.setdefault(rate, []).append(parameter)
        groups = [{"params": parameters, "scale": rate} for rate, parameters in by_rate.items()]
        self.optimizer = torch.optim.Adam(groups, config.lr, betas=(0.9, config.beta2), eps=config.eps, fused=True)
        self.curve: list[float] = []
        self.seconds = self.cpu_seconds = 0.0  # of all sessions; on a shared machine the second is the fairer
        self.epochs = Progress()  # plateau: the best loss, and what was halved for nothing

    @property
    def progress(self) -> float:
        """Share of the fit that is done; also 1 when the rate was halved twice in a row for nothing (plateau)."""
        if self.epochs.idle_halvings >= 2:
            return 1.0
        return self.cpu_seconds / self.config.seconds if self.config.seconds else len(self.curve) / self.config.steps

    def run(self, title: str | None = None) -> "Fit":
        """Go on to the end, from the saved state if there is one; leaves the model on the CPU in evaluation mode."""
        self.resume()
        saved, wall, cpu = time.monotonic(), time.monotonic() - self.seconds, time.process_time() - self.cpu_seconds
        quiet = None if title else True
        with tqdm(total=self.config.steps, initial=len(self.curve), desc=title, unit="step", disable=quiet) as bar:
            while self.progress < 1:
                self.curve.append(self.step(len(self.curve)))
                bar.set_postfix_str(f"loss {self.curve[-1]:.4f}", refresh=False)
                bar.update()
                self.seconds, self.cpu_seconds = time.monotonic() - wall, time.process_time() - cpu
                if self.progress >= 1 or time.monotonic() - saved > SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
        self.model = folded(self.model.cpu().eval())
        return self

    def step(self, step: int) -> float:
        """One optimiser step; returns the loss before it: exact and expected, or of a batch."""
        config, epochs = self.config, self.epochs
        if config.decay == "plateau" and step and step % config.epoch == 0:
            with torch.no_grad():
                if not epochs.improved(-float(self.loss(self.data, step))) and epochs.bad_epochs == PATIENCE:
                    epochs.halve()
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(self.progress) * 0.5**epochs.halvings * group["scale"]
        pairs = self.data
        if config.batches == "sampled":  # a function of seed and step: there is nothing random to save
            pairs = pairs.batch(config.batch_size, np.random.default_rng([config.seed, step]))
        with parametrize.cached():  # a head's levels are summed once a step
            loss = self.loss(pairs, step)
        self.optimizer.zero_grad()
        loss.backward()
        if config.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, pairs: Pairs, step: int) -> Float[Tensor, ""]:
        """The mean loss of pairs."""
        if isinstance(self.model, AQuaMaM):
            log_p = sentence_log_probs(self.model, pairs)
            return -(pairs.weight[pairs.real].to(log_p) * log_p).sum()
        seed = int(np.random.SeedSequence([self.config.seed, step]).generate_state(1)[0])
        images, device, generator = torch.arange(pairs.categories), self.model.device, self.model.generator(seed)
        weights = (pairs.weight * pairs.categories).float().to(device)  # the loss is a mean over categories
        return self.model.loss(images, pairs.q.to(device), weights=weights, generator=generator)

    def save(self) -> None:
        """Write the state atomically, if there is a place for it."""
        if self.state is not None:
            blob, values = io.BytesIO(), [self.curve, self.seconds, self.cpu_seconds, asdict(self.epochs)]
            torch.save([self.identity, values, self.model.state_dict(), self.optimizer.state_dict()], blob)
            write_bytes(self.state, blob.getbuffer())

    def resume(self) -> None:
        """Continue from the saved state, if there is one; it must be of this very fit."""
        if self.state is None or not self.state.exists():
            return
        identity, values, weights, moments = torch.load(self.state, map_location=self.model.device, weights_only=True)
        hint = "choose another --out, or delete it to start afresh"
        require(identity == self.identity, f"{self.state} is of a run with other settings; {hint}.")
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)
        self.curve, self.seconds, self.cpu_seconds, epochs = values
        self.epochs = Progress(**epochs)

    def costs(self) -> dict[str, Any]:
        """What the fit took, for a result."""
        took = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "steps": len(self.curve)}
        how = {"fit": asdict(self.config), "seed": self.config.seed, "threads": torch.get_num_threads()}
        return {**took, **how, "parameters": self.model.parameter_count}
