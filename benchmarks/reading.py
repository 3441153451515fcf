"""How fast data reaches training: python benchmarks/reading.py [--count 10000] [--rounds 5].

Prints a table, then one JSON line. A round reads random batches of 128; the figure is images per CPU second of the best
round, because what else the machine does can only take time. All on one core, the training step of the small model
(preset die-small) too; "x training" is how many such cores one reading core feeds.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from aquamam.data import RenderedDataset, StoredDataset, Stream, augmentation
from aquamam.data.disk.layout import Manifest, shard_size_for
from aquamam.data.disk.writing import RenderSpec, write_dataset
from aquamam.network.model import AQuaMaM
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.training.presets import PRESETS

BATCH = 128


def write(root: Path, count: int, size: int, encoding: str) -> Path:
    die, settings = solid("die"), RenderSettings(size=size)
    splits = {"train": count}
    manifest = Manifest(
        objects=[{"name": "die", "mesh": die.mesh.hash, "symmetry": die.symmetry.to_dict()}],
        settings=settings.to_dict(),
        seed=0,
        splits=splits,
        shard_size=shard_size_for(splits, encoding, settings.shape),
        encoding=encoding,
    )
    write_dataset(root, RenderSpec(names=("die",), meshes=(die.mesh,), settings=settings), manifest)
    return root


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def best(function: Callable[[int], object], images: int, rounds: int) -> float:
    """Images per CPU second of the best round."""
    function(0)
    seconds = []
    for k in range(1, rounds + 1):
        start = time.process_time()
        function(k)
        seconds.append(time.process_time() - start)
    return images / min(seconds)


def reading(stream: Stream, batches: int, rounds: int) -> float:
    def read(k: int) -> None:
        for step in range(k * batches, (k + 1) * batches):
            stream.batch(step)

    return best(read, batches * stream.batch_size, rounds)


def training(data: StoredDataset, rounds: int) -> float:
    torch.manual_seed(0)
    model = AQuaMaM(PRESETS["die-small"].model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = data.batch(range(BATCH))

    def step(_: int) -> None:
        optimizer.zero_grad()
        (-model(batch.images).log_prob(batch.rotations[:, 0]).mean()).backward()
        optimizer.step()

    return best(step, BATCH, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="images of 64 px")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        raw = StoredDataset(write(Path(folder) / "raw", args.count, 64, "raw"))
        png = StoredDataset(write(Path(folder) / "png", args.count // 5, 64, "png"))
        large = StoredDataset(write(Path(folder) / "large", args.count // 20, 224, "png"))
        live = RenderedDataset(solid("die"), RenderSettings(size=64))
        rounds = args.rounds
        figures["64 px raw"] = reading(Stream(dataset=raw, batch_size=BATCH), 40, rounds)
        figures["64 px raw, mild augmentation"] = reading(
            Stream(dataset=raw, batch_size=BATCH, augment=augmentation("mild")), 8, rounds
        )
        figures["64 px raw, strong augmentation"] = reading(
            Stream(dataset=raw, batch_size=BATCH, augment=augmentation("strong")), 8, rounds
        )
        figures["64 px PNG"] = reading(Stream(dataset=png, batch_size=BATCH), 8, rounds)
        figures["64 px rendered on the fly"] = reading(Stream(dataset=live, batch_size=BATCH), 4, rounds)
        figures["224 px PNG"] = reading(Stream(dataset=large, batch_size=BATCH), 2, rounds)
        figures["training step, die-small, 64 px"] = training(raw, rounds)
        stored = {"64 px raw": raw, "64 px PNG": png, "224 px PNG": large}
        sizes = {name: round(size_of(data.root) / len(data)) for name, data in stored.items()}
    step = figures["training step, die-small, 64 px"]
    print(f"{'':34s}{'images/CPU s':>14s}{'x training':>12s}{'bytes/image':>13s}")
    for name, rate in figures.items():
        print(f"{name:34s}{rate:14,.0f}{rate / step:12.1f}{sizes.get(name, ''):>13}")
    print(f"520,000 images of 224 px: {520_000 * sizes['224 px PNG'] / 1e9:.2f} GB")
    rates = {name: round(rate) for name, rate in figures.items()}
    about = {"benchmark": "reading", "unit": "images per CPU second", "cpu": platform.processor() or platform.machine()}
    print(json.dumps({**about, "figures": rates, "bytes_per_image": sizes}))


if __name__ == "__main__":
    main()
