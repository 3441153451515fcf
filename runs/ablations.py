"""One change at a time on the die, equal numbers of images: python runs/ablations.py [--steps 600] [--seeds 0 1 2]

A variant whose result is there is not run again, so the command can be stopped and started.
The table is printed, and written to OUT/ablations.md; OUT/ablations.json has every figure.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from aquamam.checkpoints.checkpoint import load
from aquamam.cli.evaluate import SEED
from aquamam.cli.train import open_data
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.training.presets import preset
from aquamam.training.trainer import Trainer

SIZE = 32
SMALL = {"image_size": SIZE, "stem": (32, 64, 128), "stem_blocks": (1, 1, 1)}
# title: (changes of the model, changes of the training)
VARIANTS: dict[str, tuple[dict, dict]] = {
    "the default": ({}, {}),
    "hemisphere instead of atlas": ({"chart": "hemisphere"}, {}),
    "hemisphere and the paper's density": ({"chart": "hemisphere", "density": "paper"}, {}),
    "plain patches instead of the stem": ({"embedding": "patches", "patch_size": 8}, {}),
    "hard labels": ({}, {"smoothing": 0.0}),
    "batch norms frozen for the last 30 %": ({}, {"frozen_norms": 0.7}),
    "group norm instead of batch norm": ({"stem_norm": "group"}, {}),
    "AdamW instead of Muon": ({}, {"optimizer": "adamw"}),
    "heads no faster than the rest": ({}, {"head_rate": 1.0}),
    "no running mean of the weights": ({}, {"averaging": 0.0}),
    "cells by volume": ({"by_volume": True}, {}),
}


def measure(title: str, seed: int, steps: int, images: int, out: Path) -> dict:
    """Train and judge one variant, or read what was found before."""
    folder = out / f"{list(VARIANTS).index(title)}-{seed}"
    done = folder / "figures.json"
    if done.exists():
        return json.loads(done.read_text())
    base = preset("die-small")
    model_changes, train_changes = VARIANTS[title]
    model = replace(base.model, **SMALL, **model_changes)
    train = replace(base.train, steps=steps, seed=seed, validate_every=100, validation_size=500, **train_changes)
    data, valid = open_data("render:die", SIZE, train)
    progress = Trainer("aquamam", model.to_dict(), train, data, valid, folder).fit()
    test = RenderedDataset(
        solid("die"), RenderSettings(size=SIZE), seed=SEED, split="test", length=images
    )  # the same for all
    found = evaluate(load(folder / "last.safetensors"), test, quiet=True)
    figures = {
        "title": title, "seed": seed, "images_seen": progress.images, "minutes": progress.elapsed / 60,
        "mean_log_likelihood": found.figures.mean_log_likelihood, "pit_ks": found.figures.pit_ks,
    }  # fmt: skip
    for name, errors in found.strategies.items():
        figures |= {
            f"{name}_mean": errors.mean_error_deg,
            f"{name}_median": errors.median_error_deg,
            f"{name}_acc15": errors.acc15,
        }
    done.write_text(json.dumps(figures))
    return figures


def table(found: list[dict]) -> str:
    """Means over seeds, and their standard deviation where there are several."""
    lines = [
        "| change | seeds | mean LL | greedy error, mean / median | beam | least expected error | within 15°, greedy |",
        "|---|---|---|---|---|---|---|",
    ]
    for title in VARIANTS:
        rows = [figures for figures in found if figures["title"] == title]
        if not rows:
            continue

        def mean(key: str, rows=rows) -> float:
            return statistics.mean(row[key] for row in rows)

        likelihoods = [row["mean_log_likelihood"] for row in rows]
        spread = f" ± {statistics.stdev(likelihoods):.2f}" if len(rows) > 1 else ""
        errors = " | ".join(
            f"{mean(f'{name}_mean'):.1f}° / {mean(f'{name}_median'):.1f}°" for name in ("greedy", "beam", "expected")
        )
        likelihood = f"{mean('mean_log_likelihood'):.2f}{spread}"
        lines.append(f"| {title} | {len(rows)} | {likelihood} | {errors} | {mean('greedy_acc15'):.1%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="of 128 images")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=1000, help="fresh renders to judge on")
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    args = parser.parse_args()
    found: list[dict] = []
    for seed in args.seeds:
        for title in VARIANTS:
            found.append(measure(title, seed, args.steps, args.images, args.out))
            print(json.dumps(found[-1]), flush=True)
    text = table(found)
    (args.out / "ablations.md").write_text(text + "\n")
    (args.out / "ablations.json").write_text(json.dumps(found, indent=1))
    print(text)


if __name__ == "__main__":
    main()
