"""Whether typicality tells a part from others: python runs/typicality.py PART [BOP_FOLDER OBJECT]

Photographs of the object against those of each other object of a BOP data set, and against boxes of its size that show
none: the area under the ROC curve of the p-values' statistic; and how far the p-values of fresh renders are from
uniform.
"""

import argparse

import numpy as np
import torch
from PIL import Image
from scipy.stats import kstest, mannwhitneyu

import aquamam
from aquamam.cli.evaluate import SEED
from aquamam.data.loaders.bop import BopDataset
from aquamam.fit.part import fresh_renders
from aquamam.geometry.camera import cut


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
    mine = labels == f"obj_{args.object:06d}"
    others = {label: score[labels == label] for label in sorted(set(labels[~mine]))}
    with torch.no_grad():
        empty = model.posterior(backgrounds(photographs, np.flatnonzero(mine), model.config.image_size)).image_state
    others["the background"] = -typical.score(empty).numpy()
    own = score[mine]
    for label, other in others.items():
        areas.append(mannwhitneyu(own, other).statistic / (len(own) * len(other)))
        print(f"{len(own)} photographs against {len(other)} of {label}: area under the ROC curve {areas[-1]:.3f}")
    print(f"mean {np.mean(areas):.3f}")


def backgrounds(photographs: BopDataset, wanted: np.ndarray, size: int) -> list[Image.Image]:
    """For each of these examples a box of its size in its photograph that meets no object's box, where one is found."""
    rng, crops = np.random.default_rng(0), []
    for i in wanted:
        one, whole = photographs.instances[i], Image.open(photographs.source(i)).convert("RGB")
        same = [o for o in photographs.instances if (o.scene, o.image) == (one.scene, one.image)]
        for _ in range(100):
            x, y = rng.uniform(0, whole.width - one.box[2]), rng.uniform(0, whole.height - one.box[3])
            if not any(
                abs(x - o.box[0] + (one.box[2] - o.box[2]) / 2) < (one.box[2] + o.box[2]) / 2
                and abs(y - o.box[1] + (one.box[3] - o.box[3]) / 2) < (one.box[3] + o.box[3]) / 2
                for o in same
            ):
                crops.append(cut(whole, (x, y, *one.box[2:]), size, one.camera)[0])
                break
    return crops


if __name__ == "__main__":
    main()
