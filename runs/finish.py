"""From a training run to a bundled model: python runs/finish.py NAME RUN [--solids tet,cube] [--images 10000]

Temperatures, pose sets and figures each come from renders of their own, with a seed that no training used. The weights are
stored in 16 bits; the figures go into the checkpoint, so that `aquamam info NAME --checkpoint` tells them.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aquamam
from aquamam.cli.evaluate import SEED
from aquamam.data.renders import RenderedDataset
from aquamam.posterior.distribution import learn
from aquamam.evaluation.evaluate import evaluate
from aquamam.posterior.regions import calibrate
from aquamam.rendering.render import RenderSettings
from aquamam.pages.evaluation import write_report
from aquamam.rendering.solids import solid
from aquamam.training.temperature import looks, temper, temper_contrast, temper_coverage

FIGURES = (
    "images", "mean_log_likelihood", "median_log_likelihood", "ceiling", "mean_error_deg", "median_error_deg",
    "acc15", "acc30", "spread_deg", "pit_ks", "coverage50", "coverage90", "coverage95", "samples", "seed",
)  # fmt: skip
# for the likeliest temperatures, and for those that cover
IMAGES, COVER = 8000, 6000
CONTRAST = 1500  # of those that cover
GROUPS = 2  # sure and unsure views are calibrated apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--solids", help="what it was trained on, with commas (default: NAME)")
    parser.add_argument("--images", type=int, default=10_000, help="fresh renders to judge on")
    parser.add_argument(
        "--spill", type=float, help="thinner bins pass their probability inwards, see ModelConfig (default: as trained)"
    )
    parser.add_argument("--contrast", action="store_true", help="bend the logits until regions of every level cover")
    args = parser.parse_args()
    model = aquamam.load(args.run / "best.safetensors")
    if args.spill is not None:
        model.config = replace(model.config, spill=args.spill)
        model.cells = model.config.cells
    solids = [solid(name) for name in (args.solids or args.name).split(",")]

    def renders(split: str, length: int) -> RenderedDataset:
        settings = RenderSettings(size=model.config.image_size)
        return RenderedDataset(solids, settings, seed=SEED, split=split, length=length, lookalikes=True)

    data = renders("temper", IMAGES)
    if data.alike is not None:
        learn(model, alike=data.alike.to_dict())
    factors = temper(model, data, IMAGES, certainty=True)
    print("factors of the tokens:", {name: round(factor, 3) for name, factor in factors.items()}, flush=True)
    images, likeliest = looks(renders("cover", COVER), COVER), model.config.sharpness[0]
    temper_coverage(model, images)
    if args.contrast:
        print("contrast:", temper_contrast(model, images[: CONTRAST // 50]), flush=True)
    factors["all"] = model.config.sharpness[0] / likeliest
    print("and of all:", round(factors["all"], 3), flush=True)
    half = args.run / "half.safetensors"  # what is shipped is what is calibrated and judged
    aquamam.save_model(model, half, half=True)
    model = aquamam.load(half)
    calibration = calibrate(model, renders("calibrate", 2000), groups=GROUPS, quiet=False)
    print("share of the posterior in the 50, 90 and 95 % sets:", calibration["levels"], flush=True)
    told: dict[str, Any] = {"temperatures": factors}
    told["evaluation"] = judged(args.name, model, renders("test", args.images), args.run / "evaluation")
    target = Path(aquamam.__file__).parent / "checkpoints" / "weights" / f"{args.name}.safetensors"
    aquamam.save_model(model, target, told, half=True)
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


def judged(name: str, model: Any, data: RenderedDataset, report: Path) -> dict[str, Any]:
    """The figures that a checkpoint keeps; all of them go into a report."""
    evaluation = evaluate(model, data)
    write_report(report, evaluation, data, {"model": name, "data": "fresh renders"})
    figures = evaluation.to_dict()
    kept = {key: figures[key] for key in FIGURES if key in figures}
    kept |= {"standard_error": figures["log_likelihood_se"], "strategies": figures["strategies"]}
    if len(evaluation.classes) > 1:
        kept["classes"] = {
            label: {key: of_class[key] for key in FIGURES if key in of_class}
            for label, of_class in figures["classes"].items()
        }
    print(json.dumps(kept, indent=1), flush=True)
    return kept


if __name__ == "__main__":
    main()
