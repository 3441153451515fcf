"""Weights of the original AQuaMaM repository, of its toy and of its image model."""

import os
import re
from typing import Any

import torch
from torch import Tensor

from aquamam.errors import InputError
from aquamam.network.model import AQuaMaM, ModelConfig

# our tensor names -> the original's, one replacement after the other
NAMES = (
    (r"^start$", "cls_token"),
    (r"^position$", "pos_embed"),
    (r"^head\.", "head.1."),
    (r"^norm\.", "head.0."),
    (r"^blocks\.", "transformer.layers."),
    (r"\.qkv\.", ".self_attn.in_proj_"),
    (r"\.out\.", ".self_attn.out_proj."),
    (r"^components\.", "mlps."),
    (r"\.mlp\.", "."),
    (r"^embed\.(table|project)\.", "patch_embed."),
)


def import_original(path: str | os.PathLike[str], *, heads: int = 8) -> AQuaMaM:
    """A model from a state_dict saved by the original AQuaMaM repository (toy or image model).

    Only tensors are unpickled. The file does not tell the number of attention heads; the paper's models have eight.
    """
    path, plain = os.fspath(path), "save model.state_dict() with torch.save"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"there is no file at {path!r} to import.") from error
    except Exception as error:  # torch raises many kinds for files that are not plain tensors
        raise InputError(f"{path} is not a state_dict of plain tensors; {plain}.") from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"{path} must hold a dictionary of tensors; {plain}.")
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    if lacking := {"cls_token", "pos_embed", "patch_embed.weight", "mlps.0.0.weight", "head.1.weight"} - state.keys():
        raise InputError(f"{path} is not an original AQuaMaM: it lacks {', '.join(sorted(lacking))}.")
    model = AQuaMaM(config_of(state, heads))
    tensors = {}
    for ours, tensor in model.state_dict().items():
        theirs = ours
        for pattern, replacement in NAMES:
            theirs = re.sub(pattern, replacement, theirs)
        if theirs not in state:
            raise InputError(f"{path} is not a whole AQuaMaM: it has no {theirs}, our {ours}.")
        tensors[ours] = state[theirs].reshape(tensor.shape) if ours in ("start", "position") else state[theirs]
    model.load_state_dict(tensors)
    return model.eval()


def config_of(state: dict[str, Tensor], heads: int) -> ModelConfig:
    """What the sizes of the original's tensors tell."""
    patch, tokens = state["patch_embed.weight"], state["pos_embed"].shape[1] - 3
    common: dict[str, Any] = {
        **{"chart": "hemisphere", "density": "paper", "heads": heads, "dim": state["cls_token"].shape[-1]},
        "bins": len(state["head.1.weight"]),
        "layers": 1 + max(int(name.split(".")[2]) for name in state if name.startswith("transformer.layers.")),
        "hidden": len(state["transformer.layers.0.linear1.weight"]),
        "octaves": (state["mlps.0.0.weight"].shape[1] - 1) // 2,
    }
    if patch.ndim == 2:
        return ModelConfig(**common, embedding="category", categories=len(patch), tokens=tokens)
    side = patch.shape[-1] * round(tokens**0.5)
    return ModelConfig(**common, image_size=side, patch_size=patch.shape[-1], channels=patch.shape[1])
