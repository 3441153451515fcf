"""A user's file: the public names as they are used, for `mypy --strict`; the ones that must be refused are marked."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import aquamam


def rotations(picture: Image.Image) -> Tensor:
    model = aquamam.load("die", device="cpu")
    posterior = model([picture])
    log_density: Tensor = posterior.log_prob(posterior.mode)
    best = posterior.topk(3)
    assert log_density.shape == best.log_probs[0].shape
    if not posterior.region(0.9).abstain.any():
        return posterior.sample((5,), generator=torch.Generator().manual_seed(0))
    both = aquamam.fuse([posterior, aquamam.within(posterior, 1e-3)], conflict="keep")
    return both.mode


def pose(picture: Image.Image) -> tuple[Tensor, float]:
    model = aquamam.AQuaMaM.from_pretrained("die")
    camera = aquamam.Camera(fx=500.0, fy=500.0, cx=320.0, cy=240.0)
    found = aquamam.poses(model, picture, (10, 10, 50, 60), camera)
    return found.mode.translation, found.hypotheses()[0][0].score


def keep(folder: Path) -> Path:
    model = aquamam.AQuaMaM(aquamam.ModelConfig(bins=100))
    try:
        aquamam.save_model(model, folder / "model.safetensors", {"note": "mine"}, half=True)
    except aquamam.InputError as error:
        print(error)
    return model.save_pretrained(folder)


def mistakes() -> None:
    aquamam.lode("die")  # type: ignore[attr-defined]
    aquamam.load(3)  # type: ignore[arg-type]
    aquamam.load("die")("image.png")  # type: ignore[arg-type]
    aquamam.ModelConfig(bins="many")  # type: ignore[arg-type]
