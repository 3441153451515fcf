"""From a training run to a bundled model: python runs/finish.py NAME RUN [--images 10000]

Temperatures, pose sets and figures each come from renders of their own, with a seed that no training used. The weights are
stored in 16 bits; the figures, of one look and of eight turns, go into the checkpoint, so that `aquamam info NAME --checkpoint` tells them.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import aquamam
from aquamam.commands.evaluate import SEED
from aquamam.datasets.rendered import RenderedDataset
from aquamam.datasets.stream import one_pass
from aquamam.distribution import learn
from aquamam.evaluation import evaluate
from aquamam.regions import calibrate
from aquamam.render import RenderSettings
from aquamam.report import write_report
from aquamam.solids import solid
from aquamam.tempering import temper, temper_coverage
from aquamam.turns import temper_turned, turned

FIGURES = (
    "images", "mean_log_likelihood", "median_log_likelihood", "ceiling", "mean_error_deg", "median_error_deg",
    "acc15", "acc30", "spread_deg", "pit_ks", "coverage50", "coverage90", "coverage95", "samples", "seed",
)  # fmt: skip
TURNS = 8
# for the likeliest temperatures, for those that cover, and for those of several looks
IMAGES, COVER, TURNED = 8000, 6000, 200
GROUPS = 2  # sure and unsure views are calibrated apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=10_000, help="fresh renders to judge on")
    parser.add_argument(
        "--turned-images", type=int, default=2000, help="of these, to judge turns on; 0 leaves turns out"
    )
    args = parser.parse_args()
    model = aquamam.load(args.run / "best.safetensors")

    def renders(split: str, length: int) -> RenderedDataset:
        settings = RenderSettings(size=model.config.image_size)
        return RenderedDataset(solid(args.name), settings, seed=SEED, split=split, length=length, lookalikes=True)

    data = renders("temper", IMAGES)
    if data.alike is not None:
        learn(model, alike=data.alike.to_dict())
    factors = temper(model, data, IMAGES, certainty=True)
    print("factors of the tokens:", {name: round(factor, 3) for name, factor in factors.items()}, flush=True)
    factors["all"] = temper_coverage(model, one_pass(renders("cover", COVER), 50))
    print("and of all:", round(factors["all"], 3), flush=True)
    for turns in (4, TURNS) if args.turned_images else ():
        print(
            f"in {turns} turns:",
            temper_turned(model, renders("temper", TURNED), TURNED, turns=turns, aim="coverage"),
            flush=True,
        )
    half = args.run / "half.safetensors"  # what is shipped is what is calibrated and judged
    aquamam.save_model(model, half, half=True)
    model = aquamam.load(half)
    calibration = calibrate(model, renders("calibrate", 2000), groups=GROUPS, quiet=False)
    print("share of the posterior in the 50, 90 and 95 % sets:", calibration["levels"], flush=True)
    data = renders("test", args.images)
    evaluation = evaluate(model, data)
    write_report(args.run / "evaluation", evaluation, data, {"model": args.name, "data": "fresh renders"})
    figures = evaluation.to_dict()
    kept = {key: figures[key] for key in FIGURES if key in figures}
    kept["standard_error"] = float(evaluation.columns["log_likelihood"].std()) / math.sqrt(args.images)
    kept["strategies"] = figures["strategies"]
    print(json.dumps(kept, indent=1), flush=True)
    figures_of: dict[str, Any] = {"evaluation": kept, "temperatures": factors}
    if args.turned_images:
        figures_of["evaluation_turned"] = in_turns(args, model, renders("test", args.turned_images))
    target = Path(aquamam.__file__).parent / "models" / f"{args.name}.safetensors"
    aquamam.save_model(model, target, figures_of, half=True)
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


def in_turns(args: argparse.Namespace, model: Any, data: RenderedDataset) -> dict[str, Any]:
    """The figures of several looks."""
    evaluation = evaluate(turned(model, TURNS), data)
    about = {"model": f"{args.name}, {TURNS} turns", "data": "fresh renders"}
    write_report(args.run / "evaluation-turned", evaluation, data, about)
    figures = evaluation.to_dict()
    kept = {key: figures[key] for key in FIGURES if key in figures}
    kept["standard_error"] = float(evaluation.columns["log_likelihood"].std()) / math.sqrt(len(data))
    print(json.dumps(kept, indent=1), flush=True)
    return kept


if __name__ == "__main__":
    main()
