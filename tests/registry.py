"""All posteriors and all models, each in one dictionary: a new one costs an entry, and test_laws.py runs every law over
it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from tables import table_posterior
from torch import Tensor

from aquamam.checkpoints.checkpoint import build
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import random_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.model import RotationModel
from aquamam.posterior.calibration import Calibration, ConformalScores, ViewClasses
from aquamam.posterior.distribution import Calibrated, EqualViews, RotationDistribution
from aquamam.posterior.fusion import fuse
from aquamam.posterior.kernel_mixture import KernelMixture
from aquamam.posterior.maps import within

SMALL = {"dim": 16, "heads": 2, "layers": 1, "hidden": 32}
STEM = {"embedding": "stem", "image_size": 16, "stem": (8, 8), "stem_blocks": (0, 1), "by_volume": True}
PAPER = {"chart": "hemisphere", "density": "paper"}
CATEGORY = {"embedding": "category", "tokens": 5, "chart": "hemisphere"}
TOY = {"encoder": "category", "categories": 3, "category_features": 16, **SMALL}
IPDF = {**TOY, "width": 32, "depth": 2, "octaves": 1}
# name -> kind, config, and the noise on its weights that makes it far from uniform
MODELS = {
    "stem": ("aquamam", {"bins": 30, **SMALL, "dim": 24, "layers": 2, **STEM}, 0.2),
    "patches": ("aquamam", {"bins": 31, **SMALL, "layers": 3, "image_size": 16, "patch_size": 8, **PAPER}, 0.1),
    "category": ("aquamam", {"bins": 16, **SMALL, "layers": 2, **CATEGORY}, 0.2),
    "ipdf": ("ipdf", {**IPDF, "negatives": 255, "level": 2}, 0.15),
    "ipdf-truth": ("ipdf", {**IPDF, "negatives": 63, "level": 1, "normaliser": "truth"}, 0.15),
    "mog": ("mog", {**TOY, "components": 5, "tokens": 4}, 0.15),
    "bingham": ("bingham", TOY, 0.5),
    "bingham-mixture": ("bingham", {**TOY, "components": 4}, 0.5),
    "bingham-winner": ("bingham", {**TOY, "components": 4, "training": "winner"}, 0.5),
    "vonmises": ("vonmises", {**TOY, "components": 4}, 0.4),
    "classification": ("classification", {**TOY, "level": 1}, 0.3),
    "flow": ("flow", {**TOY, "couplings": 2, "segments": 4, "width": 16, "ascent_steps": 3}, 0.1),
}


def wild(module: torch.nn.Module, noise: float) -> torch.nn.Module:
    """With noise on its weights: a fresh network's outputs hardly depend on anything."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(noise * torch.randn_like(p))
    return module


def make_model(name: str, *, fresh: bool = False) -> RotationModel:
    kind, config, noise = MODELS[name]
    torch.manual_seed(0)
    model = build(kind, config)
    if not fresh:
        wild(model, noise)
        scores = ConformalScores(samples=50, scores=((0.1, 0.5), (0.2, 0.9)), edges=(-3.0,))
        temperatures = {"temperatures": (0.8, 1.25, 0.9)} if kind == "aquamam" else {}
        model.calibration = Calibration(**temperatures, scores=scores)
    return model.eval()


def inputs(model: RotationModel, count: int) -> Tensor:
    config = model.config
    if "category" in (getattr(config, "embedding", ""), getattr(config, "encoder", "")):
        return torch.arange(count)
    shape = (count, config.channels, config.image_size, config.image_size)
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Entry:
    """How to make a posterior of some images, and what it does not promise."""

    make: Callable[[int], RotationDistribution]
    mass_error: float = 0.0  # that it states of its total mass; 1 for the paper's density, which misses some
    rotations: int = 60  # of each of 576 cells, in laws by Monte Carlo; less where a likelihood is dear
    independent: bool = True  # draws
    images_apart: bool = True  # some of the images can be had alone
    greedy: bool = False  # its mode is chosen one component after the other, or without knowing of the wrapping


def of_model(name: str, **promises) -> Entry:
    def make(images: int) -> RotationDistribution:
        model = make_model(name)
        with torch.no_grad():
            return model(inputs(model, images))

    return Entry(make, **promises)


def table(chart: str = "atlas", density: str = "cells", bins: int = 12, *, scale: float = 1.0, **options) -> Callable:
    return lambda images: table_posterior(Cells(chart, bins, density, **options), batch=images, scale=scale)


@cache
def top_of_a_tower() -> ViewClasses:
    """A square tower with four painted sides: seen from the top or bottom alone, four rotations give one picture."""
    sides = [[1.0, 0, 0, 1], [-1, 0, 0, 1], [0, 1, 0, 1], [0, -1, 0, 1]]
    changed = torch.ones(4, 4, dtype=torch.bool)
    changed[0] = False
    elements = SymmetryGroup.cyclic(4).elements
    return ViewClasses(elements=elements, planes=torch.tensor(sides).double(), changed=changed, distance=1.3)


def kernels(images: int) -> KernelMixture:
    centres = random_quat((3, images), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return KernelMixture(centres, torch.tensor([[0.3], [0.5], [2.0]]).expand(3, images), uniform=0.2)


def fused(images: int) -> RotationDistribution:
    frames = [table(bins=5)(images), kernels(images)]
    generator = torch.Generator().manual_seed(0)
    relative = random_quat((2,), generator=generator, dtype=torch.float64)
    return fuse(frames, relative, conflict="keep", generator=generator)


FLOOR = 0.05
POSTERIORS = {
    "atlas": Entry(table(), greedy=True),
    "hemisphere": Entry(table("hemisphere"), greedy=True),
    "atlas by volume": Entry(table(by_volume=True), greedy=True),
    "hemisphere by volume": Entry(table("hemisphere", bins=15, by_volume=True), greedy=True),
    "atlas, paper's": Entry(table(density="paper"), mass_error=1, greedy=True),
    "hemisphere, paper's": Entry(table("hemisphere", "paper"), mass_error=1, greedy=True),
    "many bins": Entry(table(bins=201, scale=0.5), rotations=20, greedy=True),
    "floor": Entry(lambda images: Calibrated(table()(images), Calibration(floor=FLOOR)), greedy=True),
    "equal views": Entry(lambda images: EqualViews(table()(images), top_of_a_tower()), greedy=True),
    "equal views of cells": Entry(
        lambda n: EqualViews(POSTERIORS["classification"].make(n), top_of_a_tower()), greedy=True
    ),
    "map": Entry(lambda images: within(table(scale=1.5)(images), 5e-3), greedy=True),
    "kernels": Entry(kernels),
    "fused": Entry(fused, mass_error=0.04, independent=False, images_apart=False),
    "stem": of_model("stem", rotations=10, greedy=True),
    "patches": of_model("patches", rotations=10, mass_error=1, greedy=True),
    "category": of_model("category", rotations=30, greedy=True),
    "ipdf": of_model("ipdf", mass_error=0.003),
    "ipdf-truth": of_model("ipdf-truth", mass_error=0.02, rotations=2),
    "mog": of_model("mog", greedy=True),
    "bingham": of_model("bingham"),
    "bingham-mixture": of_model("bingham-mixture"),
    "vonmises": of_model("vonmises", greedy=True),
    "classification": of_model("classification"),
    "flow": of_model("flow"),
}


def tiny(name: str) -> RotationModel:
    """One of the registry's AQuaMaMs as it is before training."""
    return make_model(name, fresh=True)
