"""From a fitted part to a bundled model: python runs/bundle.py NAME FOLDER [--images 2000]

Weights are stored in 16 bits. What is shipped is judged: on fresh pictures drawn as in training, and on plain renders
where these were others. The figures go into the checkpoint, so that `aquamam info NAME --checkpoint` tells them.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path

import aquamam
from aquamam.checkpoints.checkpoint import BUNDLED, DIGESTS, bundled, resolve
from aquamam.cli.evaluate import SEED
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.files import write_text
from aquamam.fit.part import fresh_renders
from aquamam.rendering.known import known_object
from aquamam.rendering.render import RenderSettings

KEPT = (
    *("images", "mean_log_likelihood", "log_likelihood_se", "ceiling", "mean_error_deg", "median_error_deg", "acc15"),
    *("spread_deg", "pit_ks", "coverage50", "coverage90", "coverage95", "samples", "seed", "strategies"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2_000, help="to judge on")
    args = parser.parse_args()
    fitted = aquamam.load(args.folder)
    with tempfile.TemporaryDirectory() as folder:
        model = aquamam.load(aquamam.save_model(fitted, Path(folder) / f"{args.name}.safetensors", half=True))
    known = known_object(fitted)
    assert known is not None
    drawn = {"seed": SEED, "split": "test", "length": args.images}
    sets = {"as in training": fresh_renders(fitted, **drawn)}
    if "photographs" in fitted.info["data"]:
        plain = RenderSettings(size=model.config.image_size)
        sets["plain renders"] = RenderedDataset(known.mesh, plain, lookalikes=True, **drawn)
    figures = {}
    for words, data in sets.items():
        found = evaluate(model, data).to_dict()
        figures[words] = {key: found[key] for key in KEPT if key in found}
        print(words, json.dumps(figures[words]), flush=True)
    told = figures["as in training"] | ({"plain": figures["plain renders"]} if "plain renders" in figures else {})
    target = BUNDLED / f"{args.name}.safetensors"
    aquamam.save_model(model, target, {"evaluation": told}, half=True)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in map(resolve, bundled())]
    write_text(BUNDLED / DIGESTS, "".join(sums))
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
