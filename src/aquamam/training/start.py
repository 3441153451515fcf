"""Before a run: whether data and model fit, and what is taken over from the model that it starts from, besides the
weights."""

import hashlib
from dataclasses import replace
from typing import Any

from aquamam.data.base import ListedDataset, RotationDataset
from aquamam.data.labels import carried_over
from aquamam.errors import require
from aquamam.network.model import RotationModel
from aquamam.training.config import TrainConfig


def inherited(start: RotationModel, data: RotationDataset) -> dict[str, Any]:
    """The calibration of the logits, without which the weights mean something else, and what is still known of the
    object.

    Conformal scores and typicality are left behind: they say nothing about new weights.
    """
    calibration = replace(start.calibration, scores=None, typicality=None)
    return {"calibration": calibration.to_dict(), "info": carried_over(start, data)}


def fingerprint(data: RotationDataset) -> dict[str, Any]:
    """What tells one listed data set from another; others describe themselves."""
    if not isinstance(data, ListedDataset):
        return {}
    digest = hashlib.sha256()
    for i in range(len(data)):
        digest.update(f"{data.name(i)} {data.label(i)} {data.rotations(i).round(6).tolist()}\n".encode())
    return {"content": digest.hexdigest()[:16]}


def check_images(config: Any, data: RotationDataset, name: str = "data") -> None:
    """Raise InputError unless a model of this config reads the images of these data."""
    categories = "category" in (getattr(config, "embedding", ""), getattr(config, "encoder", ""))
    require(not categories, "this model reads categories, not images; `aquamam reproduce toy` is for those.")
    size = config.image_size
    height, width = data.image_size or (size, size)
    came = f"the model reads {size} x {size} images and the {name} has {height} x {width}"
    hint = f"open or render it with size={size}, or train a model with image_size={height}"
    require((height, width) == (size, size), f"{came}; {hint}.")


def check_data(model: Any, config: TrainConfig, train: RotationDataset, valid: RotationDataset) -> None:
    """Raise InputError unless the model's config reads these images and the schedule can end."""
    check_images(model, train, "training data")
    check_images(model, valid, "validation data")
    finite = not valid.endless and len(valid) > 0
    require(finite, "the validation data is empty or endless; training needs a finite held-out split.")
    epochs = config.schedule == "cosine" or not train.endless or config.epoch_size > 0
    require(epochs, "endless data has no epochs; set epoch_size for the plateau schedule.")
