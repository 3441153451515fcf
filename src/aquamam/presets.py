"""Named models: the paper's, to the letter, and small ones that train on two cores."""

from dataclasses import replace

from aquamam.errors import InputError
from aquamam.model import ModelConfig

# Section A.5 of the paper: 3,510,609 and 20,000,756 parameters.
_TOY = ModelConfig(
    bins=50_257, chart="hemisphere", density="paper", dim=64, heads=8, layers=3, hidden=256, embedding="category"
)
_DIE = ModelConfig(bins=500, chart="hemisphere", density="paper", dim=512, heads=8, layers=6, hidden=2048, dropout=0.1)
# The small models: a convolutional stem and the atlas chart (docs/log.md has the trials).
_SMALL = ModelConfig(
    bins=500, dim=192, heads=6, layers=2, hidden=576, embedding="stem", image_size=64, stem=(24, 48, 96, 160)
)

MODELS: dict[str, ModelConfig] = {
    "toy": _TOY,
    "die": _DIE,
    "cylinder": _DIE,
    "die-small": _SMALL,
    "cylinder-small": _SMALL,
    "symsol-small": replace(_SMALL, dim=256, heads=8, hidden=768),
}


def model_config(name: str) -> ModelConfig:
    """The model of a preset."""
    if name not in MODELS:
        raise InputError(f"there is no preset {name!r}; presets are {', '.join(MODELS)}.")
    return MODELS[name]
