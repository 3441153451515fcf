"""How a bundled model fares on renders that differ from its training's: python runs/robustness.py NAME [COUNT]

Light, background, blur, noise and framing change one at a time, then together; the first line is training's setting.
"""

import json
import sys
from dataclasses import replace

import numpy as np

import aquamam
from aquamam.cli.evaluate import SEED
from aquamam.data.augment import AugmentSettings, augment
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid


class Changed(RenderedDataset):
    """Renders with the same amounts of change for everyone's image i."""

    def __init__(self, *args, change: AugmentSettings, **options):
        super().__init__(*args, **options)
        self.change = change

    def batch(self, indices, **options):
        batch = super().batch(indices, **options)
        positions = np.array(batch.indices, np.int64)
        return augment(batch, self.change, seed=1, positions=positions, background=self.background)


def main(name: str, count: int) -> None:
    model = aquamam.load(name)
    thing = solid(name)
    usual = RenderSettings(size=model.config.image_size)
    plain = AugmentSettings()
    left, right = (-1.0, 0.7, 1.0), (1.2, 0.0, 1.0)
    cases = {
        "as in training": (usual, plain),
        "light from the left": (replace(usual, light=left), plain),
        "light from the right": (replace(usual, light=right), plain),
        "dimmer light": (replace(usual, diffuse=0.5, ambient=0.6), plain),
        "light grey background": (replace(usual, background=(210, 210, 210)), plain),
        "dark background": (replace(usual, background=(60, 60, 60)), plain),
        "random plain background": (replace(usual, background="random"), plain),
        "blur of half a pixel or less": (usual, AugmentSettings(blur=0.5 / model.config.image_size)),
        "noise of 2 % or less": (usual, AugmentSettings(noise=0.02)),
        "shifted and scaled by 3 % or less": (usual, AugmentSettings(shift=0.03, scale=0.03)),
        "left light, grey ground, blur and noise": (
            replace(usual, light=left, background=(210, 210, 210)),
            AugmentSettings(blur=0.5 / model.config.image_size, noise=0.02),
        ),
    }
    print("| setting | mean LL | mean error | median error | within 15° |\n|---|---|---|---|---|")
    for title, (settings, change) in cases.items():
        data = Changed(thing, settings, seed=SEED, split="test", length=count, change=change)
        found = evaluate(model, data, samples=0, strategies=["greedy"], quiet=True).to_dict()
        print(
            f"| {title} | {found['mean_log_likelihood']:.2f} | {found['mean_error_deg']:.1f}° | "
            f"{found['median_error_deg']:.1f}° | {found['acc15']:.1%} |",
            flush=True,
        )
        print(json.dumps({"setting": title, "images": count, **found}), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
