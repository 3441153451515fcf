"""Checkpoints: what every kind of model needs to be built again, its weights and its description, in one safetensors
file. Reading it runs no code from the file."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from aquamam.errors import InputError, require
from aquamam.files import write_bytes, write_json
from aquamam.network.model import RotationModel
from aquamam.posterior.calibration import Calibration

# kind -> module, model class, config class; a baseline is loaded only when a checkpoint asks for it
KINDS: dict[str, tuple[str, str, str]] = {
    "aquamam": ("aquamam.network.model", "AQuaMaM", "ModelConfig"),
    "ipdf": ("aquamam.baselines.ipdf", "IPDF", "IPDFConfig"),
    "mog": ("aquamam.baselines.mog", "AQuaMaMMoG", "MoGConfig"),
    "bingham": ("aquamam.baselines.bingham", "Bingham", "BinghamConfig"),
    "vonmises": ("aquamam.baselines.vonmises", "VonMises", "VonMisesConfig"),
    "classification": ("aquamam.baselines.classification", "Classification", "ClassificationConfig"),
    "flow": ("aquamam.baselines.flow", "RotationFlow", "FlowConfig"),
}
BUNDLED = Path(str(resources.files("aquamam.checkpoints"))) / "weights"
FORMAT = "aquamam-1"
DIGESTS = "SHA256SUMS"  # beside bundled weights, as `sha256sum` writes and checks it
LARGEST = 1_000_000  # number in a config: bins and sizes beyond it would take memory before any weight is looked at


def build(kind: str, config: dict[str, Any]) -> RotationModel:
    """A freshly initialised model of that kind."""
    require(kind in KINDS, f"a model's kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    module, model_name, config_name = KINDS[kind]
    home = import_module(module)
    return getattr(home, model_name)(getattr(home, config_name).from_dict(config))


def describe(model: RotationModel) -> dict[str, Any]:
    """Everything of a model but its weights, as plain values."""
    calibration = model.calibration.to_dict()
    return {"kind": model.kind, "config": model.config.to_dict(), "info": model.info, "calibration": calibration}


def save_model(
    model: RotationModel, path: str | os.PathLike[str], info: dict[str, Any] | None = None, *, half: bool = False
) -> Path:
    """Save weights and config to a `.safetensors` file, or to a folder (`model.safetensors` and `config.json`).

    `half` stores 16 bits a weight, for models that travel with the package; loading makes them 32 bits again.
    """
    path = Path(path)
    require(
        model.kind in KINDS, f"a checkpoint holds one of {', '.join(KINDS)}, got {model.kind!r}; save what is inside."
    )
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
    if os.path.isdir(path):
        for candidate in (path / "model.safetensors", path / "best.safetensors"):
            if candidate.is_file():
                return candidate
        raise InputError(f"a checkpoint folder must hold model.safetensors, and {path} does not.")
    if not os.path.exists(path):  # unlike pathlib's it takes any name, however long
        names = f"no bundled model of that name (bundled: {', '.join(bundled())})"
        raise InputError(f"there is no checkpoint at {text!r:.200}, and {names}.")
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
    if path.parent == BUNDLED:
        check_digest(path)
    tensors, description = load_tensors(path)
    if not {"kind", "config"} <= description.keys():
        raise InputError(f"{path} holds no model (it may be a training state); point at model.safetensors beside it.")
    damaged = "the file is damaged or edited."
    try:
        description, tensors = modernised(description), folded_scales(tensors)
        config, info = description["config"], description.get("info", {})
        if not isinstance(config, dict) or not isinstance(info, dict):
            raise TypeError("its config and its info must be dictionaries")
        with no_larger_than(tensors, config):
            model = build(description["kind"], config)
        model.learn(**info)
        model.calibration = Calibration.from_dict(description.get("calibration", {}))
    except InputError:
        raise
    except Exception as error:  # a description may say anything
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise InputError(f"{path} describes no model ({reason:.200}); {damaged}") from error
    expected = model.state_dict()
    wrong = sorted(set(expected) ^ set(tensors)) or sorted(n for n in expected if expected[n].shape != tensors[n].shape)
    if wrong:
        told = f"{len(wrong)} tensors differ, first {wrong[0]!r}"
        raise InputError(f"{path} does not fit its own config: {told}; {damaged}")
    if infinite := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise InputError(f"{path} holds numbers that are not finite, first in {infinite[0]!r}; {damaged}")
    model.load_state_dict(tensors)
    model.source = path
    return model.to(device).eval()


# --- the file ---------------------------------------------------------------------------------------------------------


def save_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and their description atomically."""
    metadata = {"format": FORMAT, "description": json.dumps(description, sort_keys=True)}
    write_bytes(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata))


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a file written by `save_tensors`."""
    path = Path(path)
    require(path.is_file(), f"a checkpoint must be a file, and there is none at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a safetensors file or is damaged ({error}); copy it again.") from error
    came = metadata.get("format")
    require(came == FORMAT, f"{path} is a safetensors file, but not aquamam's (format {came!r}, expected {FORMAT!r}).")
    try:
        return tensors, dict(json.loads(metadata["description"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
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
    gone = ("sharpness", "certainty", "contrast", "spill", "scaled_heads")
    today = {**description, "config": {name: value for name, value in config.items() if name not in gone}}
    if "calibration" in description:
        return today
    temperatures = [1 / factor for factor in config.get("sharpness", (1.0, 1.0, 1.0))]
    corrected = bool(config.get("certainty") or config.get("spill") or set(config.get("contrast", ())) - {1.0})
    scores = None if corrected else info.get("calibration")  # else they are scores of other posteriors
    info = {"view_classes" if name == "alike" else name: v for name, v in info.items() if name != "calibration"}
    return {**today, "info": info, "calibration": {"temperatures": temperatures, "scores": scores}}


# What stands between a stranger's file and the memory.


def check_digest(file: Path) -> None:
    """Raise unless a bundled file is the one that was released: its SHA-256 stands in the table beside it."""
    line = f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}"
    if line not in (file.parent / DIGESTS).read_text().splitlines():
        told = "it was damaged or exchanged; install the package again"
        raise InputError(f"the bundled {file.stem} must have the SHA-256 that {DIGESTS} lists, and has not: {told}.")


@contextmanager
def no_larger_than(tensors: dict[str, Tensor], config: dict[str, Any]) -> Iterator[None]:
    """Models made inside have no more parameters than these, so that an edited config cannot fill the memory."""
    if any(isinstance(value, int) and value > LARGEST for value in config.values()):
        raise ValueError(f"numbers of a config are at most {LARGEST:,}")
    left, here = sum(tensor.numel() for tensor in tensors.values()), threading.get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal left
        if parameter is not None and threading.get_ident() == here:
            left -= parameter.numel()
            if left < 0:
                raise ValueError("its config does not fit: it asks for more weights than there are")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
