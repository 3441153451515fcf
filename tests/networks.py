"""Networks that answer in a millisecond."""

from typing import Any

import torch

from aquamam.network.model import AQuaMaM, ModelConfig

TINY: dict[str, Any] = {"bins": 12, "dim": 16, "heads": 2, "layers": 1, "hidden": 16, "image_size": 16}
TINY |= {"embedding": "stem", "stem": (4, 8), "stem_blocks": (0, 0)}


def tiny_config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**TINY, **changes})


def tiny_model(gain: float = 1.0, seed: int = 0, **changes: Any) -> AQuaMaM:
    """gain: of matrices, as after training; a fresh model's answers hardly depend on the image."""
    torch.manual_seed(seed)
    model = AQuaMaM(tiny_config(**changes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(gain if weight.ndim > 1 else 1)
    return model
