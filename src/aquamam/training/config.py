"""How to train: one frozen config, and schedules that are functions of progress alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from aquamam.errors import Config, InputError, require

# a rule in words, whether a value keeps it, the fields that must
RULES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("be at least 1", lambda x: x >= 1, "steps batch_size labels_per_image validate_every validation_size patience"),
    ("not be negative", lambda x: x >= 0, "time_budget weight_decay clip smoothing threads epoch_size"),
    ("lie in [0, 1)", lambda x: 0 <= x < 1, "warmup smoothing_share averaging"),
    ("lie in [0, 2^31)", lambda x: 0 <= x < 2**31, "seed"),
    ("lie in [0, 1], 1 never freezing them", lambda x: 0 <= x <= 1, "frozen_norms"),
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """Everything that decides a training run besides the model and the data."""

    called = "a training config"
    positive: ClassVar = ("lr", "head_rate", "eps", "checkpoint_seconds")
    choices: ClassVar = {
        "schedule": ("cosine", "plateau"),
        "optimizer": ("muon", "adamw", "adam"),
        "precision": ("auto", "float32", "bfloat16"),
    }

    schedule: str = "cosine"  # warm-up, then cosine to zero; or "plateau": the paper's
    steps: int = 20_000  # length of the cosine schedule; for "plateau" the most steps it may take
    time_budget: float = 0.0  # seconds; if set, the cosine schedule runs over wall-clock time instead of steps
    batch_size: int = 128  # over all processes
    optimizer: str = "muon"  # Muon for hidden matrices and AdamW for the rest; or "adamw", "adam"
    lr: float = 3e-3
    head_rate: float = 3.0  # the output layers learn so many times as fast: they must become sharp
    pyramid: bool = True  # heads learn as sums of ever coarser rows (`training.pyramid`)
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.02
    clip: float = 1.0  # largest norm of the gradient; 0 for none
    warmup: float = 0.02  # share of the schedule
    smoothing: float = 12.0  # Gaussian width of the bin labels in bins, at the start
    smoothing_share: float = 0.4  # share of the schedule after which labels are exact
    frozen_norms: float = 0.5  # share of the schedule after which batch norms keep their (noisy) statistics
    averaging: float = 0.02  # length of the weights' running mean, which is validated and saved, in steps so far
    labels_per_image: int = 1  # equivalent true rotations used for each image and step
    augment: str = "none"  # mild or strong
    epoch_size: int = 0  # examples in an epoch where the data is endless
    patience: int = 5  # plateau: epochs without improvement before the rate is halved
    validate_every: int = 500  # steps; for "plateau" an epoch
    validation_size: int = 2_000
    checkpoint_seconds: float = 60.0
    precision: str = "auto"  # of products: "bfloat16" where the processor has instructions for it, else "float32"
    compile: bool = False
    threads: int = 2  # for preparing data
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule, holds, names in RULES:
            for name in names.split():
                require(holds(getattr(self, name)), f"{name} must {rule}, got {getattr(self, name)}.")
        if self.schedule == "plateau" and self.time_budget:
            raise InputError("a time budget needs schedule=cosine; the paper's plateau schedule ends by itself.")

    def learning_rate(self, progress: float) -> float:
        """Linear warm-up, then cosine to zero; constant for "plateau", whose halvings are kept by the run."""
        if self.schedule == "plateau":
            return self.lr
        if progress < self.warmup:
            return self.lr * max(progress / self.warmup, 1e-3)
        return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - self.warmup) / (1 - self.warmup))))

    def label_width(self, progress: float) -> float:
        """Gaussian width of the bin labels, linear to zero; below half a bin it is zero."""
        if not self.smoothing_share:
            return 0.0
        width = self.smoothing * (1 - progress / self.smoothing_share)
        return width if width > 0.5 else 0.0


# The paper's recipe (Section A.5): Adam, rate halved after five epochs without improvement.
PAPER = TrainConfig(
    schedule="plateau",
    steps=10_000_000,
    optimizer="adam",
    lr=1e-4,
    head_rate=1.0,
    pyramid=False,
    betas=(0.9, 0.999),
    eps=1e-9,
    weight_decay=0.0,
    clip=0.0,
    smoothing=0.0,
    averaging=0.0,
    precision="float32",
    epoch_size=500_000,
    validation_size=10_000,
)
