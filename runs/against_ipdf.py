"""IPDF with the same encoder, data and time beside a model of ours: python runs/against_ipdf.py NAME IPDF_RUN OURS

IPDF trained by `aquamam train ipdf-small --data render:NAME --set negatives=255 ...` is normalised as in its paper, on the
grid of 2,359,296 rotations turned to the true one: its log-likelihoods cannot pass 12.38. Both models see the same fresh
renders, of a seed that no training used; errors are to the nearest equivalent of the true rotation.
"""

import argparse
import json
import math

import torch
from tqdm import tqdm

import aquamam
from aquamam.baselines.ipdf import IPDF
from aquamam.cli.evaluate import SEED
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.metrics import rotation_error
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("ipdf")
    parser.add_argument("ours")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--level", type=int, default=5, help="of IPDF's grid")
    args = parser.parse_args()
    ipdf, ours = aquamam.load(args.ipdf), aquamam.load(args.ours)
    assert isinstance(ipdf, IPDF)
    thing = solid(args.name)
    data = RenderedDataset(
        thing, RenderSettings(size=ours.config.image_size), seed=SEED, split="test", length=args.images
    )
    found: dict[str, list[float]] = {f"{who} {what}": [] for who in ("ipdf", "ours") for what in ("LL", "error")}
    with torch.inference_mode():
        for i in tqdm(range(args.images), unit="img"):
            batch = data.batch([i])
            truth = batch.rotations[0, :1]
            for who, posterior in (
                ("ipdf", ipdf.posterior(batch.images, normaliser="truth", level=args.level)),
                ("ours", ours(batch.images)),
            ):
                found[f"{who} LL"].append(float(posterior.log_prob(truth[None])))
                error = rotation_error(posterior.mode[0].double(), truth, thing.symmetry)
                found[f"{who} error"].append(math.degrees(float(error)))
    figures = {
        key: {"mean": sum(v) / len(v), "standard_error": torch.tensor(v).std().item() / len(v) ** 0.5}
        for key, v in found.items()
    }
    print(json.dumps({"name": args.name, "images": args.images, "level": args.level, **figures}, indent=1))


if __name__ == "__main__":
    main()
