"""Models that travel: a folder, or a repository of the Hugging Face hub, with a card that says what the model is."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aquamam import __version__
from aquamam.checkpoints.checkpoint import bundled, load, save_model
from aquamam.errors import InputError
from aquamam.export.runner import library
from aquamam.files import write_text
from aquamam.network.model import RotationModel
from aquamam.rendering.known import MESH_FILE

FILES = ("model.safetensors", "config.json", "README.md", MESH_FILE)  # all that is fetched: nothing else is asked for
FIGURES = {
    "mean_log_likelihood": "mean log-likelihood (nats, volume π²; uniform: −2.29)",
    "ceiling": "the largest log density that its cells allow",
    "median_error_deg": "median error (degrees)",
    "acc15": "share within 15°",
    "coverage90": "share of truths in the 90 % regions of the posterior",
    "images": "images judged",
}


def from_pretrained(
    kind: type[RotationModel],
    folder_or_repo: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    device: str | torch.device = "cpu",
) -> RotationModel:
    """A model from a folder, a bundled name or a repository "owner/name" of the hub."""
    text = os.fspath(folder_or_repo)
    there: str | os.PathLike[str] = folder_or_repo
    if not os.path.exists(text) and text not in bundled() and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text):
        options: dict[str, Any] = {"revision": revision, "token": token, "allow_patterns": list(FILES)}
        hub = library("huggingface_hub", "hub")
        there = _asked("fetched from", text, lambda: hub.snapshot_download(text, **options))
    model = load(there, device=device)
    if not isinstance(model, kind):
        raise InputError(f"{text} holds a model of kind {model.kind}, not a {kind.__name__}; try aquamam.load.")
    return model


def save_pretrained(model: RotationModel, folder: str | os.PathLike[str]) -> Path:
    """Write the checkpoint, its card and, of a fitted part, the mesh into a folder."""
    folder = Path(folder)
    if folder.suffix == ".safetensors":
        raise InputError(f"save_pretrained writes a folder, got {folder.name}; aquamam.save_model writes one file.")
    save_model(model, folder)
    write_text(folder / "README.md", model_card(model))
    mesh = None if model.source is None else model.source.parent / MESH_FILE
    if mesh is not None and mesh.is_file() and mesh.parent.resolve() != folder.resolve():
        shutil.copyfile(mesh, folder / MESH_FILE)
    return folder


def push_to_hub(
    model: RotationModel,
    repo: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    message: str = f"Model saved by aquamam {__version__}",
) -> str:
    """Put the model into a repository "owner/name" of the hub, which is made if need be; returns its address."""
    hub = library("huggingface_hub", "hub")
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)

        def send() -> str:
            api = hub.HfApi(token=token)
            url = api.create_repo(repo, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
            return str(url)

        return _asked("sent to", repo, send)


def _asked(what: str, repo: str, ask: Any) -> Any:
    try:
        return ask()
    except Exception as error:  # its own, those of the network, those of the file system
        reason = (str(error).split("\n") or [""])[0].rstrip(".") or type(error).__name__
        raise InputError(f"{repo} cannot be {what} the hub ({reason:.200}); check its name and your token.") from error


def model_card(model: RotationModel) -> str:
    """What the checkpoint knows of itself, as the README.md of a repository: data, recipe, figures, limits."""
    info, config = model.info, model.config
    sections = map(info.get, ("data", "training", "evaluation"))
    data, training, evaluation = (one if isinstance(one, dict) else {} for one in sections)
    told = [one.get("name") for one in data.get("objects") or () if isinstance(one, dict)] or info.get("classes") or ()
    names = ", ".join(map(str, told)) or "an object that its checkpoint does not name"
    poses = " and, with a box and a camera, over poses" if getattr(config, "pose", False) else ""
    calibrated = model.calibration.scores is not None
    pictures = "photograph-like renders" if data.get("photographs") else "renders" if data.get("settings") else "images"
    recipe = {"steps": info.get("steps"), "images seen": info.get("images_seen"), "hours": info.get("hours")}
    recipe |= {name.replace("_", " "): training.get(name) for name in ("optimizer", "lr", "batch_size", "seed")}
    figures = {words: evaluation.get(name) for name, words in FIGURES.items()}
    network = {"kind": model.kind, "weights": model.parameter_count, "version": f"aquamam {__version__}"}
    network |= {name: getattr(config, name, None) for name in ("image_size", "bins", "chart", "density")}
    typical = "nothing tells" if model.calibration.typicality is None else "`posterior.typicality` tells"
    limits = [
        f"It knows {names} and answers for any picture; {typical} whether one is like those that it learnt from.",
        f"It learnt from {pictures}: other cameras, lights and backgrounds cost accuracy.",
        "`posterior.region(0.9)` holds the truth as often as it says for pictures like the held-out ones only."
        if calibrated
        else "Its regions are not calibrated: `aquamam.calibrate` does it with held-out pictures.",
        "Rotations take the object to the camera: x right, y up, z towards the viewer; quaternions are xyzw.",
    ]
    return "\n".join(
        [
            "---\nlibrary_name: aquamam\ntags: [pose-estimation, rotation, so3, uncertainty]\n---",
            f"# {names}\n\nA distribution over 3D rotations{poses} given an image.\n",
            "```python\nimport aquamam\nfrom PIL import Image\n",
            'model = aquamam.AQuaMaM.from_pretrained("owner/name")  # or a folder',
            'posterior = model(Image.open("image.png"))',
            "print(posterior.mode, posterior.region(0.9).components)\n```\n",
            f"## Data\n{pictures.capitalize()} of {names}.\n",
            f"## Recipe\n{_table(recipe)}\n\n## Network\n{_table(network)}\n",
            f"## Figures\n{_table(figures)}\n\n## Limits\n" + "\n".join(f"- {limit}" for limit in limits) + "\n",
        ]
    )


def _table(values: Mapping[str, Any]) -> str:
    known = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in values.items() if v is not None}
    rows = [f"| {name} | {' '.join(value.split())} |" for name, value in known.items()]
    return "\n".join(["| | |", "|---|---|", *rows]) if rows else "The checkpoint does not tell."
