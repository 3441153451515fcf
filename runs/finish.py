"""From a training run to a bundled model: python runs/finish.py NAME RUN [--solids tet,cube] [--images 10000]

Temperatures, conformal scores and figures each come from renders of their own, with a seed that no training used.
Weights are stored in 16 bits; the figures go into the checkpoint, so that `aquamam info NAME --checkpoint` tells them.
"""

import argparse
import json
from pathlib import Path

import aquamam
from aquamam.cli.evaluate import SEED
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.pages.evaluation import write_report
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.training.calibrate import calibrate, temper

KEPT = (
    *(
        "images",
        "mean_log_likelihood",
        "median_log_likelihood",
        "ceiling",
        "mean_error_deg",
        "median_error_deg",
        "acc15",
    ),
    *("acc30", "spread_deg", "pit_ks", "coverage50", "coverage90", "coverage95", "samples", "seed", "strategies"),
)
IMAGES = 2000  # for temperatures, and for conformal scores
GROUPS = 2  # sure and unsure views are calibrated apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--solids", help="what it was trained on, with commas (default: NAME)")
    parser.add_argument("--images", type=int, default=10_000, help="fresh renders to judge on")
    args = parser.parse_args()
    model = aquamam.load(args.run / "best.safetensors")
    settings = RenderSettings(size=model.config.image_size)
    solids = [solid(name) for name in (args.solids or args.name).split(",")]

    def renders(split: str, length: int) -> RenderedDataset:
        return RenderedDataset(solids, settings, seed=SEED, split=split, length=length, lookalikes=True)

    held_out = renders("temper", IMAGES)
    if held_out.view_classes is not None:
        model.learn(view_classes=held_out.view_classes.to_dict())
    temper(model, held_out, IMAGES)
    print("temperatures of the tokens:", model.calibration.temperatures, flush=True)
    half = args.run / "half.safetensors"  # what is shipped is what is calibrated and judged
    aquamam.save_model(model, half, half=True)
    model = aquamam.load(half)
    levels = calibrate(model, renders("calibrate", IMAGES), groups=GROUPS, quiet=False)["levels"]
    print("share of the posterior in the 50, 90 and 95 % sets:", levels, flush=True)
    data = renders("test", args.images)
    evaluation = evaluate(model, data)
    write_report(args.run / "evaluation", evaluation, data, {"model": args.name, "data": "fresh renders"})
    figures = evaluation.to_dict()
    kept = {key: figures[key] for key in KEPT if key in figures} | {"standard_error": figures["log_likelihood_se"]}
    if len(evaluation.classes) > 1:
        classes = figures["classes"].items()
        kept["classes"] = {label: {key: of[key] for key in KEPT if key in of} for label, of in classes}
    print(json.dumps(kept, indent=1), flush=True)
    target = Path(aquamam.__file__).parent / "checkpoints" / "weights" / f"{args.name}.safetensors"
    aquamam.save_model(model, target, {"evaluation": kept}, half=True)
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
