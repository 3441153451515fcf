"""Ours against the paper's pseudo-code, written plainly, on the die-sized and toy models.

Die-sized: d 512, 6 layers, 224 px, N = 500, 20,000,756 parameters, random weights, the same weights on both sides.
Where the plain side's cost is proportional to the number of rotations it runs a share of them, and its time is scaled
up.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

import aquamam
from aquamam.checkpoints.checkpoint import build
from aquamam.data.renders import RenderedDataset
from aquamam.export.onnx import export
from aquamam.export.runner import OnnxModel
from aquamam.geometry.camera import cut
from aquamam.geometry.grid import so3_grid
from aquamam.geometry.rotations import random_quat
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.reproduce.fit_pairs import Fit, FitConfig
from aquamam.reproduce.toy import toy_pairs
from aquamam.training.presets import PRESETS
from benchmarks.measure import Figure, at_most, compare
from benchmarks.plain import PlainAQuaMaM

DIE = {"bins": 500, "dim": 512, "heads": 8, "layers": 6, "image": 224, "patch": 16}


def same_models(**shape) -> tuple:
    """The plain network and ours with the same weights."""
    torch.manual_seed(0)
    plain = PlainAQuaMaM(**shape).eval()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(plain.state_dict(), Path(folder) / "plain.pt")
        return plain, aquamam.import_original(Path(folder) / "plain.pt", heads=shape["heads"])


def as_onnx(model) -> OnnxModel:
    """The same model in onnxruntime."""
    with tempfile.TemporaryDirectory() as folder:
        export(model, Path(folder) / "model.onnx")
        return OnnxModel(Path(folder) / "model.onnx")


@torch.inference_mode()
def likelihoods_and_samples(rounds: int, share: int = 10) -> list[Figure]:
    plain, ours = same_models(**DIE)
    image, q = torch.rand(1, 3, 224, 224), random_quat((1000, 1))
    generator = torch.Generator().manual_seed(0)
    part = 1000 // share

    def plain_likelihoods():
        for chunk in q[:part, 0].split(25):
            plain.log_prob(image.expand(len(chunk), -1, -1, -1), chunk)

    def plain_samples():
        for start in range(0, part, 25):
            plain.sample(image, min(25, part - start))

    options = {"at_least": 90, "rounds": rounds, "other_scale": share, "note": f"plain side timed on {part} of 1,000"}
    likelihoods = ("likelihoods of 1,000 rotations, one image", lambda: ours(image).log_prob(q))
    samples = ("1,000 samples, one image", lambda: ours(image).sample((1000,), generator=generator))
    return [
        compare(*likelihoods, "plain forward pass per rotation", plain_likelihoods, **options),
        compare(*samples, "the paper's cached sampling, one image copy each", plain_samples, **options),
    ]


@torch.inference_mode()
def predictions(rounds: int) -> list[Figure]:
    """Greedy, with both engines."""
    plain, ours = same_models(**DIE)
    figures = []
    for engine, model in (("torch", ours), ("onnx", as_onnx(ours))):
        for batch, turns in ((1, 10 * rounds), (16, 2 * rounds)):
            images = torch.rand(batch, 3, 224, 224)
            figures.append(
                compare(
                    f"greedy predictions, batch {batch}",
                    lambda model=model, images=images: model(images).mode,
                    "the paper's cached decoding",
                    lambda images=images: plain.predict_cached(images),
                    at_least=1.15,
                    rounds=turns,
                    engine=engine,
                )
            )
    return figures


@torch.inference_mode()
def pose_over_rotation(rounds: int) -> Figure:
    """What three more tokens cost: a box's pose, crop included, against its rotation."""
    model, picture = aquamam.load("die"), Image.effect_noise((640, 480), 60).convert("RGB")
    box, camera = (200, 150, 100, 90), aquamam.Camera(fx=600, fy=600, cx=320, cy=240)

    def rotation():
        return model([cut(picture, box, model.config.image_size, camera)[0]]).mode

    def pose():
        return aquamam.poses(model, picture, box, camera).mode

    both = compare("a box's pose, bundled die", pose, "its rotation alone", rotation, at_least=1, rounds=rounds)
    return at_most("a box's pose over its rotation alone: time", both.ours / both.other, 1.4, rounds)


def training_step(rounds: int, batch: int = 32) -> Figure:
    plain, ours = same_models(**DIE)
    plain.train(), ours.train()
    images, q = torch.rand(batch, 3, 224, 224), random_quat((batch,))

    def step(model, loss: Callable[[], torch.Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    return compare(
        f"training step, batch {batch}",
        lambda: step(ours, lambda: ours.loss(images, q[None])),
        "plain forward and backward",
        lambda: step(plain, lambda: plain.loss(images, q)),
        at_least=1.15,
        rounds=rounds,
        steady=True,
    )


def toy_training(rounds: int) -> Figure:
    """Sampled batches of 128: the plain loop runs 128 sequences, ours the distinct pairs with six prefixes encoded
    once."""
    plain, ours = same_models(bins=50_257, dim=64, heads=8, layers=3, categories=6, tokens=196)
    plain.train(), ours.train()
    pairs = toy_pairs()
    fit = Fit(ours, pairs, FitConfig(batches="sampled"))
    category, q, weight = pairs.real.nonzero()[:, 1], pairs.q[pairs.real].float(), pairs.weight[pairs.real]
    optimizer = torch.optim.Adam(plain.parameters(), 1e-4, fused=True)  # the same optimiser on both sides
    generator = torch.Generator().manual_seed(0)

    def plain_step():
        drawn = torch.multinomial(weight, 128, replacement=True, generator=generator)
        optimizer.zero_grad()
        plain.loss(category[drawn], q[drawn]).backward()
        optimizer.step()

    name = "toy training, one sampled batch of 128"
    return compare(name, lambda: fit.step(0), "plain loop", plain_step, at_least=20, rounds=4 * rounds, steady=True)


@torch.inference_mode()
def against_ipdf(rounds: int) -> list[Figure]:
    """IPDF's MLP over its grid against our decoder, both with the small encoder; maps of trained models, too, as how
    many rotations are likely is a matter of weights."""
    torch.manual_seed(0)
    ours, ipdf = (
        build(PRESETS[name].kind, PRESETS[name].model.to_dict()).eval() for name in ("die-small", "ipdf-small")
    )
    image, q = torch.rand(1, 3, 64, 64), random_quat((1, 1))
    grid = so3_grid(4, dtype=torch.float32)[:, None]

    def ipdf_on(level):
        posterior = ipdf.posterior(image, level=level)
        return posterior.log_prob(q), posterior.mode

    def ours_once(model):
        posterior = model(image)
        return posterior.log_prob(q), posterior.mode

    few = max(2, rounds // 2)
    figures = [
        compare(
            "prediction and likelihood",
            lambda model=model: ours_once(model),
            "IPDF on 2,359,296 rotations",
            lambda: ipdf_on(5),
            at_least=150,
            rounds=few,
            engine=engine,
        )
        for engine, model in (("torch", ours), ("onnx", as_onnx(ours)))
    ]
    maps = {"every value": lambda: ours(image).log_prob(grid)}
    for name in ("die", "cylinder"):
        model = aquamam.load(f"{name}-plain")
        data = RenderedDataset(solid(name), RenderSettings(size=64), seed=0, split="test", length=5)
        pictures = iter(data.batch(range(5)).images[:, None].repeat(rounds + 1, 1, 1, 1, 1))  # five renders in turn
        maps[f"within 1e-6, {name}"] = lambda model=model, pictures=pictures: aquamam.within(
            model(next(pictures)), 1e-6
        ).log_prob(grid)
    for name, work in maps.items():
        title = f"likelihood map on 294,912 rotations, {name}"
        turns = few if name == "every value" else rounds
        figures.append(compare(title, work, "IPDF on the same grid", lambda: ipdf_on(4), at_least=1, rounds=turns))
    return figures
