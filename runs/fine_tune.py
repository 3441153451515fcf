"""What labelled photographs add to a fitted part: python runs/fine_tune.py PART BOP_FOLDER OBJECT OUT [--counts 20,40]

Of a BOP data set's photographs of one object, the first so many of a shuffled list are trained on; those that no count
takes are judged, before and after. Training starts from the fitted part, at a low rate, with mild augmentation.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import aquamam
from aquamam.data.loaders.bop import BopDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.network.poses import Part, part_of
from aquamam.training.presets import preset
from aquamam.training.trainer import Trainer

STEPS = 300


def chosen(part: Part, args: argparse.Namespace, rows: np.ndarray) -> BopDataset:
    """The data set of some of the object's photographs."""
    data = BopDataset(args.data, "test", size=64, objects=[args.object], min_visible=0.6, part=part)
    data.instances = [data.instances[i] for i in rows]
    data.names, data.labels = [data.names[i] for i in rows], [data.labels[i] for i in rows]
    data.poses = type(data.poses)(*(value[rows] for value in data.poses))
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("object", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--counts", type=lambda text: [int(n) for n in text.split(",")], default=[20, 40])
    args = parser.parse_args()
    fitted = aquamam.load(args.part)
    part = part_of(fitted)
    assert part is not None
    whole = chosen(part, args, np.arange(len(BopDataset(args.data, "test", objects=[args.object], min_visible=0.6))))
    rows = np.random.default_rng(0).permutation(len(whole))
    test = chosen(part, args, rows[max(args.counts) :])
    report("as fitted", fitted, test)
    for count in args.counts:
        train = replace(
            preset("die-small").train, steps=STEPS, lr=3e-4, smoothing=0.0, augment="mild", batch_size=32,
            frozen_norms=0.0, validate_every=STEPS, labels_per_image=1,
        )  # fmt: skip
        data = chosen(part, args, rows[:count])
        trainer = Trainer(
            "aquamam", fitted.config.to_dict(), train, data, data, args.out / str(count), start_from=fitted, quiet=True
        )
        trainer.fit()
        report(f"{count} photographs", aquamam.load(args.out / str(count)), test)


def report(words: str, model: aquamam.AQuaMaM, data: BopDataset) -> None:
    found = evaluate(model, data, strategies=["greedy"], quiet=True).figures
    print(
        f"{words:16} {found.images} test photographs: LL {found.mean_log_likelihood:.2f}, "
        f"within 15 deg {found.acc15:.0%}, "
        f"30 deg {found.acc30:.0%}, median error {found.median_error_deg:.1f} deg, 90 % region {found.coverage90:.0%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
