"""Whether typicality tells a part from others: python runs/typicality.py PART [BOP_FOLDER OBJECT]

Photographs of the object against those of each other object of a BOP data set: the area under the ROC curve of the
p-values' statistic; and how far the p-values of fresh renders are from uniform.
"""

import argparse

import numpy as np
import torch
from scipy.stats import kstest, mannwhitneyu

import aquamam
from aquamam.cli.evaluate import SEED
from aquamam.data.loaders.bop import BopDataset
from aquamam.fit.part import fresh_renders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part")
    parser.add_argument("data", nargs="?")
    parser.add_argument("object", type=int, nargs="?")
    args = parser.parse_args()
    model = aquamam.load(args.part)
    typical, renders = model.calibration.typicality, fresh_renders(model, seed=SEED, split="test", length=1000)
    with torch.no_grad():
        p = model(renders.batch(range(1000)).images).typicality.numpy()
    print(f"p-values of 1,000 fresh renders: KS distance from uniform {kstest(p, 'uniform').statistic:.3f}")
    if args.data is None or args.object is None:
        return
    photographs = BopDataset(args.data, "test", size=model.config.image_size, min_visible=0.6)
    batch = photographs.batch(range(len(photographs)))
    with torch.no_grad():
        score = -typical.score(model.posterior(batch.images).image_state).numpy()
    labels, areas = np.array(batch.labels), []
    own = score[labels == f"obj_{args.object:06d}"]
    for label in sorted(set(labels) - {f"obj_{args.object:06d}"}):
        other = score[labels == label]
        areas.append(mannwhitneyu(own, other).statistic / (len(own) * len(other)))
        print(f"{len(own)} photographs against {len(other)} of {label}: area under the ROC curve {areas[-1]:.3f}")
    print(f"mean {np.mean(areas):.3f}")


if __name__ == "__main__":
    main()
