"""Before a run: whether data and model fit, and what is taken over from the model that it starts from, besides the
weights."""

from dataclasses import replace
from typing import Any

from aquamam.data.base import RotationDataset
from aquamam.data.labels import carried_over
from aquamam.errors import InputError
from aquamam.network.model import RotationModel
from aquamam.training.config import TrainConfig


def inherited(start: RotationModel, data: RotationDataset) -> dict[str, Any]:
    """The calibration of the logits, without which the weights mean something else, and what is still known of the
    object.

    Conformal scores are left behind: they say nothing about new weights.
    """
    calibration = replace(start.calibration, scores=None)
    return {"calibration": calibration.to_dict(), "info": carried_over(start, data)}


def check_data(model: Any, config: TrainConfig, train: RotationDataset, valid: RotationDataset) -> None:
    """Raise InputError unless the model's config reads these images and the schedule can end."""
    if "category" in (getattr(model, "embedding", ""), getattr(model, "encoder", "")):
        raise InputError("a model of categories cannot be trained on images; choose a preset that reads images.")
    for name, data in (("training", train), ("validation", valid)):
        size = model.image_size
        if data.image_size is not None and tuple(data.image_size) != (size, size):
            height, width = data.image_size
            raise InputError(
                f"the model reads {size} x {size} images and the {name} data has {height} x {width}; set "
                f"image_size={height}, or render or open the data at {size}."
            )
    if valid.endless or len(valid) == 0:
        raise InputError("the validation data is empty or endless; training needs a finite held-out split.")
    if config.schedule == "plateau" and train.endless and not config.epoch_size:
        raise InputError("endless data has no epochs; set epoch_size for the plateau schedule.")
