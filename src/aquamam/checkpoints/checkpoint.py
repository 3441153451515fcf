"""Checkpoints: what every kind of model needs to be built again, its weights and its description, in one file."""

import os
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch

from aquamam.checkpoints.format import folded_scales, load_tensors, modernised, save_tensors
from aquamam.errors import InputError
from aquamam.files import write_json
from aquamam.network.model import RotationModel
from aquamam.posterior.calibration import Calibration

# kind -> module, model class, config class; a baseline is loaded only when a checkpoint asks for it
KINDS: dict[str, tuple[str, str, str]] = {
    "aquamam": ("aquamam.network.model", "AQuaMaM", "ModelConfig"),
    "ipdf": ("aquamam.baselines.ipdf", "IPDF", "IPDFConfig"),
    "mog": ("aquamam.baselines.mog", "AQuaMaMMoG", "MoGConfig"),
    "bingham": ("aquamam.baselines.bingham", "Bingham", "BinghamConfig"),
    "vonmises": ("aquamam.baselines.vonmises", "VonMises", "VonMisesConfig"),
    "vonmises-cvae": ("aquamam.baselines.vonmises", "VonMisesCVAE", "VonMisesCVAEConfig"),
    "classification": ("aquamam.baselines.classification", "Classification", "ClassificationConfig"),
    "flow": ("aquamam.baselines.flow", "RotationFlow", "FlowConfig"),
}
BUNDLED = Path(str(resources.files("aquamam.checkpoints"))) / "weights"


def build(kind: str, config: dict[str, Any]) -> RotationModel:
    """A freshly initialised model of that kind."""
    if kind not in KINDS:
        raise InputError(f"a model's kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    module, model_name, config_name = KINDS[kind]
    home = import_module(module)
    return getattr(home, model_name)(getattr(home, config_name).from_dict(config))


def describe(model: RotationModel) -> dict[str, Any]:
    """Everything of a model but its weights, as plain values."""
    told = {"kind": model.kind, "config": model.config.to_dict(), "info": model.info}
    return {**told, "calibration": model.calibration.to_dict()}


def save_model(
    model: RotationModel, path: str | os.PathLike[str], info: dict[str, Any] | None = None, *, half: bool = False
) -> Path:
    """Save weights and config to a `.safetensors` file, or to a folder (`model.safetensors` and `config.json`).

    `half` stores 16 bits a weight, for models that travel with the package; loading makes them 32 bits again.
    """
    path = Path(path)
    if model.kind not in KINDS:
        raise InputError(f"a checkpoint holds one of {', '.join(KINDS)}, got {model.kind!r}; save the model inside it.")
    description = {**describe(model), "info": {**model.info, **(info or {})}}
    file = path if path.suffix == ".safetensors" else path / "model.safetensors"
    state = {k: v.half() if half and v.is_floating_point() else v for k, v in model.state_dict().items()}
    save_tensors(file, state, description)
    if file is not path:  # for people; the loader reads the copy inside the weights' file
        write_json(path / "config.json", description, indent=2)
    return file


def bundled() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(file.stem for file in BUNDLED.glob("*.safetensors"))


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The file behind a bundled name, a checkpoint file or a folder with one."""
    text, path = os.fspath(name_or_path), Path(name_or_path)
    if text in bundled():
        return BUNDLED / f"{text}.safetensors"
    if path.is_dir():
        for candidate in (path / "model.safetensors", path / "best.safetensors"):
            if candidate.is_file():
                return candidate
        raise InputError(f"a checkpoint folder must hold model.safetensors, and {path} does not.")
    if not path.exists():
        names = ", ".join(bundled())
        raise InputError(f"there is no checkpoint at {text!r}, and no bundled model of that name (bundled: {names}).")
    return path


def usable(device: str | torch.device) -> torch.device:
    """A device that this computer has."""
    try:
        number = torch.zeros((), device=device)
        number.item()  # "meta" has none
        return number.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"--device must be one that this computer has, got '{device}' ({reason}).") from error


def load(name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> RotationModel:
    """A model in evaluation mode from a bundled name or a checkpoint's path."""
    device, path = usable(device), resolve(name_or_path)
    tensors, description = load_tensors(path)
    description = modernised(description)
    if not {"kind", "config"} <= description.keys():
        raise InputError(f"{path} holds no model (it may be a training state); point at model.safetensors beside it.")
    info, damaged = description.get("info", {}), "the file is damaged or edited."
    try:
        if not isinstance(description["config"], dict) or not isinstance(info, dict):
            raise TypeError("its config and its info must be dictionaries")
        model = build(description["kind"], description["config"])
    except TypeError as error:
        raise InputError(f"{path} describes no model ({error}); {damaged}") from error
    tensors = folded_scales(tensors)
    expected = model.state_dict()
    wrong = sorted(set(expected) ^ set(tensors)) or sorted(n for n in expected if expected[n].shape != tensors[n].shape)
    if wrong:
        told = f"{len(wrong)} tensors differ, first {wrong[0]!r}"
        raise InputError(f"{path} does not fit its own config: {told}; {damaged}")
    if infinite := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise InputError(f"{path} holds numbers that are not finite, first in {infinite[0]!r}; {damaged}")
    model.load_state_dict(tensors)
    model.learn(**info)
    model.calibration = Calibration.from_dict(description.get("calibration", {}))
    model.source = path
    return model.to(device).eval()
