"""The file: tensors and a JSON description in one safetensors file. Reading it runs no code from the file."""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from aquamam.errors import InputError
from aquamam.files import write_bytes

FORMAT = "aquamam-1"


def save_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and their description atomically."""
    metadata = {"format": FORMAT, "description": json.dumps(description, sort_keys=True)}
    write_bytes(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata))


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a file written by `save_tensors`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"a checkpoint must be a file, and there is none at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a safetensors file or is damaged ({error}); copy it again.") from error
    if metadata.get("format") != FORMAT:
        found = metadata.get("format")
        raise InputError(f"{path} is a safetensors file, but not aquamam's (format {found!r}, expected {FORMAT!r}).")
    try:
        return tensors, json.loads(metadata["description"])
    except (KeyError, json.JSONDecodeError) as error:
        raise InputError(f"{path} has no readable description; the file is damaged, copy it again.") from error


def folded_scales(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of heads that once had a factor of their own, times the factor."""
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("certainty.")}
    for name in [name for name in tensors if name.endswith(".log_scale")]:
        weight = name.replace("log_scale", "weight")
        tensors[weight] = tensors[weight].float() * tensors.pop(name).float().exp()
    return tensors


def modernised(description: dict[str, Any]) -> dict[str, Any]:
    """A description of version 0.1 as of today: what was fitted to held-out images stood in its config and its info.

    Corrections that no longer exist (state-dependent temperatures, bent logits, slivers that spill) are left out,
    and with them the scores of the posteriors that they corrected.
    """
    config, info = description.get("config"), description.get("info", {})
    if not isinstance(config, dict) or not isinstance(info, dict):
        return description
    config = {name: value for name, value in config.items() if name != "scaled_heads"}
    if "calibration" in description:
        return {**description, "config": config}
    temperatures = [1 / factor for factor in config.get("sharpness", (1.0, 1.0, 1.0))]
    corrected = bool(config.get("certainty") or config.get("spill") or set(config.get("contrast", ())) - {1.0})
    scores = None if corrected else info.get("calibration")  # else they are scores of other posteriors
    calibration = {"temperatures": temperatures, "scores": scores}
    gone = ("sharpness", "certainty", "contrast", "spill")
    config = {name: value for name, value in config.items() if name not in gone}
    info = {"view_classes" if name == "alike" else name: v for name, v in info.items() if name != "calibration"}
    return {**description, "config": config, "info": info, "calibration": calibration}
