"""Set the sharpness of a model's heads on fresh renders: python runs/temper.py NAME CHECKPOINT OUT.safetensors"""

import sys

import aquamam
from aquamam.cli.evaluate import SEED
from aquamam.data.renders import RenderedDataset
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.training.temperature import temper

if __name__ == "__main__":
    name, checkpoint, out = sys.argv[1:4]
    model = aquamam.load(checkpoint)
    settings = RenderSettings(size=model.config.image_size)
    print(temper(model, RenderedDataset(solid(name), settings, seed=SEED, split="temper", length=2000), 2000))
    aquamam.save_model(model, out)
