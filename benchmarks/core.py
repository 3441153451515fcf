"""Ours against the paper's pseudo-code, written plainly, on the die-sized and toy models: the comparisons of `python -m benchmarks`.

Die-sized: d 512, 6 layers, 224 px, N = 500, 20,000,756 parameters, random weights, the same weights on both sides. Where the plain side's
cost is proportional to the number of rotations it runs a share of them, and its time is scaled up.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from aquamam.checkpoints.original import import_original
from aquamam.geometry.rotations import random_quat
from aquamam.network.layers import normalise
from benchmarks.measure import Figure, compare, share_of_limit
from benchmarks.plain import PlainAQuaMaM

DIE = {"bins": 500, "dim": 512, "heads": 8, "layers": 6, "image": 224, "patch": 16}


def same_models(**shape) -> tuple:
    """The plain network and ours with the same weights."""
    torch.manual_seed(0)
    plain = PlainAQuaMaM(**shape).eval()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(plain.state_dict(), Path(folder) / "plain.pt")
        return plain, import_original(Path(folder) / "plain.pt", heads=shape["heads"])


def layer_flops(tokens: int, keys: int, dim: int, hidden: int) -> int:
    """Of one Transformer layer: qkv, attention, output, MLP."""
    return 2 * tokens * (4 * dim * dim + 2 * dim * hidden + 2 * keys * dim)


def encoder_flops(
    batch: int, dim: int = 512, hidden: int = 2048, layers: int = 6, patches: int = 196, patch: int = 768
) -> int:
    """Of encoding images, with the last layer pruned to keys, values and [START]."""
    tokens = patches + 1
    embed = 2 * patches * patch * dim
    last = 2 * tokens * 2 * dim * dim + layer_flops(1, tokens, dim, hidden) - 2 * 2 * dim * dim
    return batch * (embed + (layers - 1) * layer_flops(tokens, tokens, dim, hidden) + last)


def rotation_flops(
    rotations: int, dim: int = 512, hidden: int = 2048, layers: int = 6, patches: int = 196, bins: int = 500
) -> int:
    """Of two tokens a rotation against the shared prefix, heads included."""
    return rotations * (layers * layer_flops(2, patches + 2, dim, hidden) + 2 * 2 * dim * bins)


def convolution_flops(model, image: torch.Tensor) -> int:
    """Of a convolutional stem, counted while it runs."""
    with FlopCounterMode(display=False) as counter:
        model.embed(normalise(image))
    return counter.get_total_flops()


def likelihoods_and_samples(rounds: int, share: int) -> list[Figure]:
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

    note = f"plain side timed on {part} of 1,000"
    flops = encoder_flops(1) + rotation_flops(1000)
    with torch.inference_mode():
        return [
            compare(
                "likelihoods of 1,000 rotations, one image", lambda: ours(image).log_prob(q),
                "plain forward pass per rotation", plain_likelihoods,
                at_least=90, rounds=rounds, other_scale=share, note=note, flops=flops,
            ),
            compare(
                "1,000 samples, one image", lambda: ours(image).sample((1000,), generator=generator),
                "the paper's cached sampling, one image copy each", plain_samples,
                at_least=90, rounds=rounds, other_scale=share, note=note, flops=flops,
            ),
        ]  # fmt: skip


def predictions(rounds: int) -> list[Figure]:
    plain, ours = same_models(**DIE)
    figures = []
    with torch.inference_mode():
        for batch, target in ((1, 1.15), (16, 1.2)):
            images = torch.rand(batch, 3, 224, 224)
            figures.append(
                compare(
                    f"greedy predictions, batch {batch}",
                    lambda images=images: ours(images).mode,
                    "the paper's cached decoding",
                    lambda images=images: plain.predict_cached(images),
                    at_least=target,
                    rounds=10 * rounds if batch == 1 else 2 * rounds,
                    flops=encoder_flops(batch) + rotation_flops(batch),
                )
            )
    return figures


def encoder_share(rounds: int) -> list[Figure]:
    """Seconds of the encoder beside what its FLOPs take at the rate of a large matrix product."""
    _, ours = same_models(**DIE)
    figures = []
    with torch.inference_mode():
        for batch in (1, 16):
            images = torch.rand(batch, 3, 224, 224)
            figures.append(
                share_of_limit(
                    f"encoder at batch {batch}: share of the limit", lambda images=images: ours(images),
                    encoder_flops(batch), at_least=0.85, rounds=10 * rounds if batch == 1 else 4 * rounds,
                )
            )  # fmt: skip
    return figures


def training_step(rounds: int, batch: int = 32) -> Figure:
    plain, ours = same_models(**DIE)
    plain.train(), ours.train()
    images, q = torch.rand(batch, 3, 224, 224), random_quat((batch,))

    def step(model, loss):
        model.zero_grad(set_to_none=True)
        loss().backward()

    return compare(
        f"training step, batch {batch}", lambda: step(ours, lambda: ours.loss(images, q[None])),
        "plain forward and backward", lambda: step(plain, lambda: plain.loss(images, q)),
        at_least=1.15, rounds=rounds, flops=3 * (encoder_flops(batch) + rotation_flops(batch)), steady=True,
    )  # fmt: skip


def toy_training(rounds: int) -> Figure:
    """Sampled batches of 128: the plain loop runs 128 sequences, ours the distinct pairs of the batch with six prefixes encoded once."""
    from aquamam.reproduce.fit_pairs import Fit, FitConfig
    from aquamam.reproduce.toy import toy_pairs

    plain, ours = same_models(bins=50_257, dim=64, heads=8, layers=3, categories=6, tokens=196)
    plain.train(), ours.train()
    pairs = toy_pairs()
    fit = Fit(ours, pairs, FitConfig(batches="sampled"))
    optimizer = torch.optim.Adam(plain.parameters(), 1e-4, fused=True)  # the same optimiser on both sides
    generator = torch.Generator().manual_seed(0)
    q, category, weight = pairs.q[pairs.real].float(), pairs.real.nonzero()[:, 1], pairs.weight[pairs.real]

    def plain_step():
        drawn = torch.multinomial(weight, 128, replacement=True, generator=generator)
        optimizer.zero_grad()
        plain.loss(category[drawn], q[drawn]).backward()
        optimizer.step()

    return compare(
        "toy training, one sampled batch of 128",
        lambda: fit.step(0),
        "plain loop",
        plain_step,
        at_least=8,
        rounds=4 * rounds,
        flops=toy_flops(fit),
        steady=True,
    )


def toy_flops(fit) -> int:
    """Of our step, forward and backward: each prefix and each distinct token once."""
    config, batch = fit.model.config, fit.batch(0)
    shape = {"dim": config.dim, "hidden": config.hidden, "layers": config.layers, "patches": config.tokens}
    tokens = encoder_flops(batch.categories, **shape, patch=0) + rotation_flops(int(batch.real.sum()), **shape, bins=0)
    rows = batch.categories + 2 * int(batch.real.sum())
    return 3 * (tokens + 2 * config.dim * config.bins * rows)


def shape_of(model) -> dict[str, int]:
    config = model.config
    return {"dim": config.dim, "hidden": config.hidden, "layers": config.layers, "patches": config.prefix_tokens}


def image_flops(model, image: torch.Tensor) -> int:
    """Of encoding an image with a convolutional stem, and of the first token's head."""
    encoder = convolution_flops(model, image) + encoder_flops(1, **shape_of(model), patch=0)
    return encoder + 2 * model.config.dim * model.cells.first_tokens


def tokens_asked(posterior, q: torch.Tensor) -> int:
    """How many rotation tokens pass the network for these likelihoods."""
    rest, asked = posterior.conditionals.rest, []

    def counted(chart, seen, *past):
        asked.append(seen.numel())
        return rest(chart, seen, *past)

    posterior.conditionals.rest = counted
    posterior.log_prob(q)
    return sum(asked)


def maps_of_trained_models(ipdf_on: Callable[[int], object], rounds: int) -> list[Figure]:
    """Maps within 1e-6 of total variation of the bundled models of the same size: how many rotations are likely is a matter of weights."""
    from aquamam.checkpoints.checkpoint import load
    from aquamam.data.renders import RenderedDataset
    from aquamam.geometry.grid import so3_grid
    from aquamam.rendering.render import RenderSettings
    from aquamam.rendering.solids import solid

    grid = so3_grid(4, dtype=torch.float32)[:, None]
    figures = []
    for name in ("die", "cylinder"):
        model = load(name)
        pictures = RenderedDataset(solid(name), RenderSettings(size=64), seed=0, split="test", length=5)
        images = pictures.batch(range(5)).images[:, None]
        image = iter(images.repeat(rounds + 1, 1, 1, 1, 1))
        asked = statistics.median(tokens_asked(model(picture).within(1e-6), grid) for picture in images)
        flops = image_flops(model, images[0]) + rotation_flops(int(asked), **shape_of(model)) // 2
        figures.append(
            compare(
                f"likelihood map on 294,912 rotations within 1e-6, {name}",
                lambda model=model, image=image: model(next(image)).within(1e-6).log_prob(grid),
                "IPDF on the same grid", lambda: ipdf_on(4), at_least=1, rounds=rounds, flops=flops,
                note=f"five renders in turn; {int(asked):,} tokens through the network",
            )
        )  # fmt: skip
    return figures


def against_ipdf(rounds: int) -> list[Figure]:
    """The same image features on both sides: IPDF's MLP over its grid against our decoder, both with the small encoder."""
    from aquamam.checkpoints.checkpoint import build
    from aquamam.geometry.grid import so3_grid
    from aquamam.training.presets import PRESETS

    torch.manual_seed(0)
    ours = build("aquamam", PRESETS["die-small"].model.to_dict()).eval()
    ipdf = build("ipdf", PRESETS["ipdf-small"].model.to_dict()).eval()
    image, q = torch.rand(1, 3, 64, 64), random_quat((1, 1))
    grid = so3_grid(4, dtype=torch.float32)[:, None]

    def ipdf_on(level):
        posterior = ipdf.posterior(image, level=level)
        return posterior.log_prob(q), posterior.mode

    def ours_once():
        posterior = ours(image)
        return posterior.log_prob(q), posterior.mode

    with torch.inference_mode():
        encoding, shape, first_tokens = image_flops(ours, image), shape_of(ours), ours.cells.first_tokens
        return [
            compare(
                "prediction and likelihood", ours_once, "IPDF on 2,359,296 rotations", lambda: ipdf_on(5), at_least=150, rounds=max(2, rounds // 2),
                flops=encoding + rotation_flops(2, **shape),
            ),
            compare(
                "likelihood map on 294,912 rotations, every value", lambda: ours(image).log_prob(grid), "IPDF on the same grid",
                lambda: ipdf_on(4), at_least=1, rounds=max(2, rounds // 2),
                flops=encoding + rotation_flops(first_tokens + len(grid), **shape) // 2,  # each first token once, each rotation's second
            ),
            *maps_of_trained_models(ipdf_on, rounds),
        ]  # fmt: skip
