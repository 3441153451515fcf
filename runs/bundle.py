"""A bundled model from a fitted part or a training run: python runs/bundle.py NAME FOLDER [--solids tet,cube]

A training run of plain renders, whose solids are named, is calibrated first: temperatures and conformal scores come
from renders of their own, with a seed that no training used. Weights are stored in 16 bits. What is shipped is judged:
on fresh pictures drawn as in training, and on plain renders where these were others. The figures go into the
checkpoint, so that `aquamam info NAME --checkpoint` tells them, and pages with them beside it.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

import aquamam
from aquamam.checkpoints.checkpoint import BUNDLED, DIGESTS, bundled, resolve
from aquamam.cli.evaluate import SEED
from aquamam.data.base import RotationDataset
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.files import write_text
from aquamam.fit.part import fresh_renders
from aquamam.pages.evaluation import write_report
from aquamam.rendering.known import known_object
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.training.calibrate import calibrate, temper

KEPT = (
    "images mean_log_likelihood median_log_likelihood log_likelihood_se ceiling mean_error_deg median_error_deg acc15"
)
KEPT += " acc30 spread_deg pit_ks coverage50 coverage90 coverage95 samples seed strategies"
IMAGES = 2000  # for temperatures, and for conformal scores
GROUPS = 2  # sure and unsure views are calibrated apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--solids", help="what a training run was trained on, with commas")
    parser.add_argument("--images", type=int, default=2_000, help="to judge on")
    args = parser.parse_args()
    target, made = BUNDLED / f"{args.name}.safetensors", aquamam.load(args.folder)
    known = known_object(made)
    objects = [solid(name) for name in args.solids.split(",")] if args.solids else known and known.mesh
    assert objects, "a training run's solids must be named"

    def plain(split: str, length: int) -> RenderedDataset:
        settings = RenderSettings(size=made.config.image_size)
        return RenderedDataset(objects, settings, seed=SEED, split=split, length=length, lookalikes=True)

    if args.solids:
        held_out = plain("temper", IMAGES)
        if held_out.view_classes is not None:
            made.learn(view_classes=held_out.view_classes.to_dict())
        temper(made, held_out, IMAGES)
        print("temperatures of the tokens:", made.calibration.temperatures, flush=True)
    with tempfile.TemporaryDirectory() as folder:  # what is shipped is what is calibrated and judged
        model = aquamam.load(aquamam.save_model(made, Path(folder) / f"{args.name}.safetensors", half=True))
    sets: dict[str, RotationDataset] = {}
    if args.solids:
        levels = calibrate(model, plain("calibrate", IMAGES), groups=GROUPS, quiet=False)["levels"]
        print("share of the posterior in the 50, 90 and 95 % sets:", levels, flush=True)
    else:
        sets["as in training"] = fresh_renders(made, seed=SEED, split="test", length=args.images)
    if args.solids or "photographs" in made.info["data"]:
        sets["plain renders"] = plain("test", args.images)
    told = []
    for words, data in sets.items():
        evaluation = evaluate(model, data)
        write_report(args.folder / words.replace(" ", "-"), evaluation, data, {"model": args.name, "data": words})
        figures = evaluation.to_dict()
        told.append({key: figures[key] for key in KEPT.split()})
        if len(evaluation.classes) > 1:
            classes = figures["classes"].items()
            told[-1]["classes"] = {label: {key: of[key] for key in KEPT.split() if key in of} for label, of in classes}
        print(words, json.dumps(told[-1]), flush=True)
    about = told[0] | ({"plain": told[1]} if len(told) > 1 else {})
    aquamam.save_model(model, target, {"evaluation": about}, half=True)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in map(resolve, bundled())]
    write_text(BUNDLED / DIGESTS, "".join(sums))
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
