"""Checkpoints: tensors and a JSON description in one safetensors file. Loading runs no code from the file."""

import json
import os
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from aquamam.errors import InputError
from aquamam.files import write_bytes, write_json
from aquamam.network.model import AQuaMaM, ModelConfig, RotationModel
from aquamam.posterior.calibration import Calibration

FORMAT = "aquamam-1"

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


def build(kind: str, config: dict[str, Any]) -> RotationModel:
    """A freshly initialised model of that kind."""
    if kind not in KINDS:
        raise InputError(f"a model's kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    module, model_name, config_name = KINDS[kind]
    home = import_module(module)
    return getattr(home, model_name)(getattr(home, config_name).from_dict(config))


def save_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write a safetensors file atomically: a reader sees the old file or the new one, never half of one."""
    metadata = {"format": FORMAT, "description": json.dumps(description, sort_keys=True)}
    blob = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata)
    write_bytes(path, blob)


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
        raise InputError(
            f"{path} is a safetensors file, but not one of aquamam's (format {metadata.get('format')!r}, expected {FORMAT!r})."
        )
    try:
        return tensors, json.loads(metadata["description"])
    except (KeyError, json.JSONDecodeError) as error:
        raise InputError(f"{path} has no readable description; the file is damaged, copy it again.") from error


def save_model(
    model: RotationModel, path: str | os.PathLike[str], info: dict[str, Any] | None = None, *, half: bool = False
) -> Path:
    """Save weights and config to a `.safetensors` file, or to a folder (`model.safetensors` and `config.json`).

    `half` stores 16 bits a weight, for models that travel with the package; loading makes them 32 bits again.
    """
    path = Path(path)
    if model.kind not in KINDS:
        raise InputError(f"a checkpoint holds one of {', '.join(KINDS)}, got {model.kind!r}; save the model inside it.")
    description = {
        "kind": model.kind,
        "config": model.config.to_dict(),
        "calibration": model.calibration.to_dict(),
        "info": {**model.info, **(info or {})},
    }
    file = path if path.suffix == ".safetensors" else path / "model.safetensors"
    state = {k: v.half() if half and v.is_floating_point() else v for k, v in model.state_dict().items()}
    save_tensors(file, state, description)
    if file is not path:
        write_json(
            path / "config.json", description, indent=2
        )  # for people; the loader reads the copy inside the weights' file
    return file


def bundled() -> list[str]:
    """Names of the models that come with the package."""
    folder = resources.files("aquamam.checkpoints") / "weights"
    return (
        sorted(Path(str(f)).stem for f in folder.iterdir() if str(f).endswith(".safetensors"))
        if folder.is_dir()
        else []
    )


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The file behind a bundled name, a checkpoint file or a folder with one."""
    text = os.fspath(name_or_path)
    if text in bundled():
        return Path(str(resources.files("aquamam.checkpoints") / "weights" / f"{text}.safetensors"))
    path = Path(text)
    if path.is_dir():
        for candidate in ("model.safetensors", "best.safetensors"):
            if (path / candidate).is_file():
                return path / candidate
        raise InputError(f"a checkpoint folder must hold model.safetensors, and {path} does not.")
    if not path.exists():
        names = ", ".join(bundled()) or "none yet"
        raise InputError(f"there is no checkpoint at {text!r}, and no bundled model of that name (bundled: {names}).")
    return path


def load(name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> RotationModel:
    """A model in evaluation mode from a bundled name or a checkpoint's path."""
    path = resolve(name_or_path)
    tensors, description = modernised(*load_tensors(path))
    if not {"kind", "config"} <= description.keys():
        raise InputError(f"{path} holds no model (it may be a training state); point at model.safetensors beside it.")
    info = description.get("info", {})
    try:
        if not isinstance(description["config"], dict) or not isinstance(info, dict):
            raise TypeError("its config and its info must be dictionaries")
        model = build(description["kind"], description["config"])
    except TypeError as error:
        raise InputError(f"{path} describes no model ({error}); the file is damaged or edited.") from error
    expected = model.state_dict()
    wrong = sorted(set(expected) ^ set(tensors)) or sorted(n for n in expected if expected[n].shape != tensors[n].shape)
    if wrong:
        raise InputError(
            f"{path} does not fit its own config: {len(wrong)} tensors differ, first {wrong[0]!r}; the file is damaged or edited."
        )
    if infinite := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise InputError(
            f"{path} holds numbers that are not finite, first in {infinite[0]!r}; the file is damaged or edited."
        )
    model.load_state_dict(tensors)
    model.learn(**info)
    model.calibration = Calibration.from_dict(description.get("calibration", {}))
    model.source = path
    return model.to(device).eval()


def modernised(
    tensors: dict[str, Tensor], description: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A checkpoint of version 0.1 as of today: what was fitted to held-out images stood in its config and its info.

    Corrections that no longer exist (state-dependent temperatures, bent logits, slivers that spill) are left out.
    """
    config, info = description.get("config"), description.get("info", {})
    if not isinstance(config, dict) or not isinstance(info, dict) or "calibration" in description:
        return tensors, description
    config, info = dict(config), dict(info)
    sharpness = config.pop("sharpness", (1.0, 1.0, 1.0))
    for gone in ("certainty", "contrast", "spill"):
        config.pop(gone, None)
    calibration = {"temperatures": [1 / factor for factor in sharpness], "scores": info.pop("calibration", None)}
    if "alike" in info:
        info["view_classes"] = info.pop("alike")
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("certainty.")}
    return tensors, {**description, "config": config, "info": info, "calibration": calibration}


def import_original(path: str | os.PathLike[str], *, heads: int = 8) -> AQuaMaM:
    """A model from a state_dict saved by the original AQuaMaM repository (toy or image model).

    Only tensors are unpickled. The file does not tell the number of attention heads; the paper's models have eight.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"there is no file at {os.fspath(path)!r} to import.") from error
    except Exception as error:  # torch raises many kinds for files that are not plain tensors
        raise InputError(
            f"{os.fspath(path)} is not a state_dict of plain tensors; save model.state_dict() with torch.save."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(
            f"{os.fspath(path)} must hold a dictionary of tensors; save model.state_dict() with torch.save."
        )
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    missing = {"cls_token", "pos_embed", "patch_embed.weight", "mlps.0.0.weight", "head.1.weight"} - state.keys()
    if missing:
        raise InputError(f"{os.fspath(path)} is not an original AQuaMaM: it lacks {', '.join(sorted(missing))}.")

    dim = state["cls_token"].shape[-1]
    patch = state["patch_embed.weight"]
    tokens = state["pos_embed"].shape[1] - 3
    layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("transformer.layers."))
    common: dict[str, Any] = {
        "bins": len(state["head.1.weight"]), "chart": "hemisphere", "density": "paper", "dim": dim, "heads": heads,
        "layers": layers, "hidden": len(state["transformer.layers.0.linear1.weight"]),
        "octaves": (state["mlps.0.0.weight"].shape[1] - 1) // 2,
    }  # fmt: skip
    if patch.ndim == 2:
        config = ModelConfig(**common, embedding="category", categories=len(patch), tokens=tokens)
    else:
        side = patch.shape[-1] * round(tokens**0.5)
        config = ModelConfig(**common, image_size=side, patch_size=patch.shape[-1], channels=patch.shape[1])
    model = AQuaMaM(config)
    renamed = {ours: state[theirs] for ours, theirs in _original_names(model).items() if theirs in state}
    lacking = sorted(set(model.state_dict()) - set(renamed))
    if lacking:
        raise InputError(
            f"{os.fspath(path)} is not a whole AQuaMaM: nothing for {lacking[0]} and {len(lacking) - 1} more."
        )
    renamed["start"] = renamed["start"].flatten()
    renamed["position"] = renamed["position"][0]
    model.load_state_dict(renamed)
    return model.eval()


def _original_names(model: AQuaMaM) -> dict[str, str]:
    """Our tensor names -> the original's."""
    parts = {
        "blocks.": "transformer.layers.",
        ".qkv.weight": ".self_attn.in_proj_weight",
        ".qkv.bias": ".self_attn.in_proj_bias",
        ".out.": ".self_attn.out_proj.",
        "components.": "mlps.",
        ".mlp.": ".",
        "embed.table.": "patch_embed.",
        "embed.project.": "patch_embed.",
    }
    names = {}
    for ours in model.state_dict():
        theirs = {"start": "cls_token", "position": "pos_embed"}.get(ours, ours)
        if ours.startswith("norm."):
            theirs = "head.0." + ours.removeprefix("norm.")
        elif ours.startswith("head."):
            theirs = "head.1." + ours.removeprefix("head.")
        for part, other in parts.items():
            theirs = theirs.replace(part, other)
        names[ours] = theirs
    return names
