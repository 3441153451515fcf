"""Named models and how to train them: the paper's, to the letter, and small ones that train on two cores."""

from dataclasses import dataclass, replace

from aquamam.errors import InputError
from aquamam.model import ModelConfig
from aquamam.recipes import PAPER, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model and its training."""

    model: ModelConfig
    train: TrainConfig
    kind: str = "aquamam"


# Section A.5 of the paper: 3,510,609 and 20,000,756 parameters.
_TOY = ModelConfig(
    bins=50_257, chart="hemisphere", density="paper", dim=64, heads=8, layers=3, hidden=256, embedding="category"
)
_DIE = ModelConfig(bins=500, chart="hemisphere", density="paper", dim=512, heads=8, layers=6, hidden=2048, dropout=0.1)
# The small models: a convolutional stem and the atlas chart (docs/log.md has the trials).
_SMALL = ModelConfig(
    bins=500, dim=192, heads=6, layers=2, hidden=576,
    embedding="stem", image_size=64, stem=(16, 48, 96, 192), stem_blocks=(0, 1, 1, 1),
)  # fmt: skip
_FAST = TrainConfig()

PRESETS: dict[str, Preset] = {
    "toy": Preset(model=_TOY, train=PAPER),
    "die": Preset(model=_DIE, train=PAPER),
    "cylinder": Preset(model=_DIE, train=PAPER),
    "die-small": Preset(model=_SMALL, train=_FAST),
    "cylinder-small": Preset(model=_SMALL, train=replace(_FAST, labels_per_image=8)),
    "symsol-small": Preset(
        model=replace(_SMALL, dim=256, heads=8, hidden=768), train=replace(_FAST, labels_per_image=8)
    ),
}
MODELS: dict[str, ModelConfig] = {name: preset.model for name, preset in PRESETS.items()}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}; presets are {', '.join(PRESETS)}.")
    return PRESETS[name]


def model_config(name: str) -> ModelConfig:
    """The model of a preset."""
    return preset(name).model
