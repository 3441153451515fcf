"""Sharing the prefix against the paper's plain forward pass: python -m benchmarks.core [--quick].

The die-sized model (d 512, 6 layers, 224 px, 20,000,756 parameters, random weights). The plain side runs `share` of the rotations and its
time is scaled up, since its cost is proportional to their number.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from aquamam.checkpoint import import_original
from aquamam.rotations import random_quat
from benchmarks.measure import Figure, compare, machine, report
from benchmarks.plain import PlainAQuaMaM


def same_models(**shape) -> tuple:
    """The plain network and ours with the same weights."""
    torch.manual_seed(0)
    plain = PlainAQuaMaM(**shape).eval()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(plain.state_dict(), Path(folder) / "plain.pt")
        return plain, import_original(Path(folder) / "plain.pt", heads=shape["heads"])


def die_figures(rounds: int, share: int) -> list[Figure]:
    plain, ours = same_models(bins=500, dim=512, heads=8, layers=6, image=224, patch=16)
    image = torch.rand(1, 3, 224, 224)
    q = random_quat((1000, 1))
    generator = torch.Generator().manual_seed(0)
    part = 1000 // share

    def plain_likelihoods():
        for chunk in q[:part, 0].split(25):
            plain.log_prob(image.expand(len(chunk), -1, -1, -1), chunk)

    def plain_samples():
        for start in range(0, part, 25):
            plain.sample(image, min(25, part - start))

    note = f"plain side timed on {part} of 1,000"
    return [
        compare("likelihoods of 1,000 rotations of one image", lambda: ours(image).log_prob(q), "plain forward pass per rotation",
                plain_likelihoods, at_least=50, rounds=rounds, other_scale=share, note=note),
        compare("1,000 samples of one image", lambda: ours(image).sample((1000,), generator=generator), "the paper's cached sampling, one image copy each",
                plain_samples, at_least=50, rounds=rounds, other_scale=share, note=note),
        compare("one greedy prediction", lambda: ours(image).mode, "the paper's cached decoding", lambda: plain.predict_cached(image),
                at_least=1.15, rounds=2 * rounds),
        compare("greedy predictions, batch 16", lambda: ours(image.expand(16, -1, -1, -1)).mode, "the paper's cached decoding",
                lambda: plain.predict_cached(image.expand(16, -1, -1, -1)), at_least=1.2, rounds=rounds),
    ]  # fmt: skip


def training_figure(rounds: int) -> Figure:
    plain, ours = same_models(bins=500, dim=512, heads=8, layers=6, image=224, patch=16)
    plain.train(), ours.train()
    images, q = torch.rand(32, 3, 224, 224), random_quat((32,))

    def step(model, loss):
        model.zero_grad(set_to_none=True)
        loss().backward()

    return compare("training step of the die model, batch 32", lambda: step(ours, lambda: ours.loss(images, q[None])), "plain forward and backward",
                   lambda: step(plain, lambda: plain.loss(images, q)), at_least=1.15, rounds=rounds)  # fmt: skip


def toy_figure(rounds: int) -> Figure:
    """Sampled batches of 128: the plain loop runs 128 sequences, ours the distinct pairs of the batch with the six prefixes encoded once."""
    from aquamam.experiments.toy import make_data, train_step

    plain, ours = same_models(bins=50_257, dim=64, heads=8, layers=3, categories=6, tokens=196)
    plain.train(), ours.train()
    optimizers = [torch.optim.Adam(m.parameters(), 1e-4) for m in (plain, ours)]
    data = make_data()
    generator = torch.Generator().manual_seed(0)

    def plain_step():
        categories, q = data.sample(128, generator)
        optimizers[0].zero_grad()
        plain.loss(categories, q.float()).backward()
        optimizers[0].step()

    return compare("toy training, one sampled batch of 128", lambda: train_step(ours, optimizers[1], data, data.sampled_weights(128, generator)),
                   "plain loop", plain_step, at_least=20, rounds=rounds)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a smaller share for the plain side")
    parser.add_argument("--skip-toy", action="store_true")
    args = parser.parse_args()
    rounds, share = (3, 20) if args.quick else (5, 10)
    print(machine())
    with torch.inference_mode():
        figures = die_figures(rounds, share)
    figures.append(training_figure(rounds))
    if not args.skip_toy:
        figures.append(toy_figure(rounds))
    report(figures)


if __name__ == "__main__":
    main()
