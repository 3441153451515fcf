"""Put a trained model into the package: python runs/bundle.py NAME CHECKPOINT EVALUATION.json

The weights are stored in 16 bits; the evaluation's figures go into the checkpoint, so that `aquamam info NAME --checkpoint` tells them.
"""

import json
import sys
from pathlib import Path

import aquamam

FIGURES = (
    "images", "mean_log_likelihood", "median_log_likelihood", "ceiling", "mean_error_deg", "median_error_deg",
    "acc15", "acc30", "spread_deg", "pit_ks", "coverage50", "coverage90", "coverage95", "samples", "seed",
)  # fmt: skip


def main(name: str, checkpoint: str, evaluation: str) -> None:
    model = aquamam.load(checkpoint)
    figures = json.loads(Path(evaluation).read_text())
    kept = {key: figures[key] for key in FIGURES if key in figures}
    target = Path(aquamam.__file__).parent / "models" / f"{name}.safetensors"
    aquamam.save_model(model, target, {"evaluation": kept}, half=True)
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB, {kept}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
