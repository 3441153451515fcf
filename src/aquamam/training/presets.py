"""Named models and how to train them: the paper's, to the letter, small ones that train on two cores, and the other
systems."""

from dataclasses import dataclass, replace
from typing import Any

from aquamam.baselines.bingham import BinghamConfig
from aquamam.baselines.classification import ClassificationConfig
from aquamam.baselines.flow import FlowConfig
from aquamam.baselines.ipdf import IPDFConfig
from aquamam.baselines.mog import MoGConfig
from aquamam.baselines.vonmises import VonMisesConfig
from aquamam.errors import InputError
from aquamam.network.model import ModelConfig
from aquamam.training.config import PAPER, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model and its training."""

    model: Any  # the config of its kind
    train: TrainConfig
    kind: str = "aquamam"


# Section A.5 of the paper: 3,510,609 and 20,000,756 parameters.
_TOY = ModelConfig(
    bins=50_257, chart="hemisphere", density="paper", dim=64, heads=8, layers=3, hidden=256, embedding="category"
)
_DIE = ModelConfig(bins=500, chart="hemisphere", density="paper", dim=512, heads=8, layers=6, hidden=2048, dropout=0.1)
# One small encoder for ours and for the others: a convolutional stem to 4 x 4 tokens (docs/log.md has the trials).
_ENCODER: dict[str, Any] = {
    "dim": 192,
    "heads": 6,
    "layers": 2,
    "hidden": 576,
    "image_size": 64,
    "stem": (16, 48, 96, 192),
    "stem_blocks": (0, 1, 1, 1),
    "stem_norm": "batch",
}
_SMALL = ModelConfig(bins=500, embedding="stem", **_ENCODER)
_FAST = TrainConfig()
_OTHER = replace(_FAST, lr=1.5e-3, smoothing=0.0, validation_size=500)
# IPDF's own recipe: rate 1e-4 after 1,000 steps of warm-up, then cosine over 300,000.
_IPDF = replace(
    _OTHER,
    steps=300_000,
    optimizer="adam",
    lr=1e-4,
    head_rate=1.0,
    betas=(0.9, 0.999),
    weight_decay=0.0,
    clip=0.0,
    averaging=0.0,
    warmup=1 / 300,
    validation_size=200,
)

PRESETS: dict[str, Preset] = {
    "toy": Preset(model=_TOY, train=PAPER),
    "die": Preset(model=_DIE, train=PAPER),
    "cylinder": Preset(model=_DIE, train=PAPER),
    "die-small": Preset(model=_SMALL, train=_FAST),
    "cylinder-small": Preset(model=_SMALL, train=replace(_FAST, labels_per_image=8)),
    "symsol-small": Preset(
        model=replace(_SMALL, dim=256, heads=8, hidden=768), train=replace(_FAST, labels_per_image=8)
    ),
    "ipdf": Preset(kind="ipdf", model=IPDFConfig(encoder="resnet50", image_size=224), train=_IPDF),
    "ipdf-toy": Preset(kind="ipdf", model=IPDFConfig(encoder="category"), train=_IPDF),
    "ipdf-small": Preset(
        kind="ipdf", model=IPDFConfig(shared_negatives=True, **_ENCODER), train=replace(_OTHER, validation_size=200)
    ),
    "mog-small": Preset(kind="mog", model=MoGConfig(**_ENCODER), train=_OTHER),
    "bingham-small": Preset(kind="bingham", model=BinghamConfig(components=16, **_ENCODER), train=_OTHER),
    "bingham-wta-small": Preset(
        kind="bingham", model=BinghamConfig(components=16, training="winner", **_ENCODER), train=_OTHER
    ),
    "vonmises-small": Preset(kind="vonmises", model=VonMisesConfig(**_ENCODER), train=_OTHER),
    "classification-small": Preset(kind="classification", model=ClassificationConfig(**_ENCODER), train=_OTHER),
    "flow-small": Preset(kind="flow", model=FlowConfig(**_ENCODER), train=_OTHER),
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}; presets are {', '.join(PRESETS)}.")
    return PRESETS[name]
