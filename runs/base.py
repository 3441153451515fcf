"""An encoder of many parts, for fits to start from: python runs/base.py OUT [--parts 64] [--minutes 85] [--from die]

Many made-up parts in photograph-like pictures, one network for all, which is told the part by a vector of its own and
learns to see shapes under any light. The parts are drawn from a seed: primitives put together, revolved and extruded
outlines, bent and tapered, painted or plain. Stopped, it goes on where it was; `--sheet FILE` draws the parts
instead.
"""

import argparse
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import trimesh
from scipy.spatial.transform import Rotation
from torch import Tensor, nn

from aquamam.checkpoints.checkpoint import KINDS, load, save_model
from aquamam.data.base import Batch
from aquamam.data.photos import PhotoDataset
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.posterior.calibration import Calibration
from aquamam.rendering.meshes import FIT_RADIUS, Mesh
from aquamam.rendering.render import RenderSettings, contact_sheet, render
from aquamam.training.presets import preset
from aquamam.training.trainer import Trainer

FACES = 4000  # at most, of a part
MOST_PARTS = 256  # their numbers are bytes


def primitive(rng: np.random.Generator) -> trimesh.Trimesh:
    """A box, cylinder, cone, ball, ring, revolved or extruded outline, of any proportions."""
    kind = rng.integers(7)
    if kind == 0:
        body = trimesh.creation.box(extents=np.exp(rng.uniform(-1, 1, 3))).subdivide().subdivide()
    elif kind == 1:
        body = trimesh.creation.cylinder(
            rng.uniform(0.2, 1), rng.uniform(0.2, 2.5), sections=int(rng.choice([5, 6, 24]))
        )
    elif kind == 2:
        body = trimesh.creation.cone(rng.uniform(0.3, 1), rng.uniform(0.4, 2), sections=int(rng.choice([4, 6, 24])))
    elif kind == 3:
        body = trimesh.creation.icosphere(subdivisions=3)
        body.apply_scale(np.exp(rng.uniform(-0.6, 0.6, 3)))
    elif kind == 4:
        body = trimesh.creation.torus(1.0, rng.uniform(0.1, 0.45), major_sections=24, minor_sections=10)
    elif kind == 5:  # bottles, bowls, knobs
        count = int(rng.integers(4, 9))
        outline = np.stack([rng.uniform(0.15, 1, count), np.linspace(-1, 1, count) * rng.uniform(0.5, 1.5)], 1)
        outline[[0, -1], 0] = 0.0
        body = trimesh.creation.revolve(outline, sections=24)
    else:
        body = extruded(rng)
    body.apply_transform(trimesh.transformations.random_rotation_matrix(rng.random(3)))
    return body


def extruded(rng: np.random.Generator) -> trimesh.Trimesh:
    """A star-shaped outline with a thickness: gears, brackets, plates."""
    count = int(rng.integers(5, 16))
    radius = rng.uniform(0.4, 1, count) if rng.random() < 0.6 else np.tile(rng.uniform(0.5, 1, 2), 8)
    angle = np.linspace(0, 2 * np.pi, len(radius), endpoint=False)
    ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    half, n = rng.uniform(0.08, 0.6), len(ring)
    low, high = (np.column_stack([np.vstack([ring, [0, 0]]), np.full(n + 1, z)]) for z in (-half, half))
    i, j = np.arange(n), (np.arange(n) + 1) % n
    caps = [np.stack([j, i, np.full(n, n)], 1), np.stack([i, j, np.full(n, n)], 1) + n + 1]
    sides = [np.stack([i, j, j + n + 1], 1), np.stack([i, j + n + 1, i + n + 1], 1)]
    return trimesh.Trimesh(np.vstack([low, high]), np.vstack([*caps, *sides])).subdivide()


def part(seed: int) -> Mesh:
    """Part number `seed`: two to five primitives, perhaps bent or tapered, painted or plain."""
    rng = np.random.default_rng([2026, seed])
    bodies, colours = [], []
    base = rng.uniform(20, 235, 3) if rng.random() < 0.6 else np.full(3, rng.uniform(20, 235))
    for k in range(int(rng.integers(2, 6))):
        body = primitive(rng)
        if k:
            body.apply_scale(rng.uniform(0.25, 0.8))
            body.apply_translation(rng.normal(0, 0.45, 3))
        bodies.append(body)
        own = base if rng.random() < 0.6 else rng.uniform(10, 245, 3)
        colours.append(np.tile(own, (len(body.vertices), 1)))
    vertices = np.vstack([body.vertices for body in bodies])
    starts = np.cumsum([0, *(len(body.vertices) for body in bodies)])
    faces = np.vstack([body.faces + start for body, start in zip(bodies, starts)])
    normals = np.vstack([corner_normals(body) for body in bodies])
    colours = np.vstack(colours)
    if rng.random() < 0.4:  # patches of paint, or shades of it
        field = np.sin(vertices @ rng.normal(0, 2.5, (3, 4)) + rng.uniform(0, 6, 4)).sum(1)
        paint, sharp = rng.uniform(0, 255, 3), rng.choice([1.5, 30.0])
        share = 1 / (1 + np.exp(-sharp * (field - rng.uniform(-0.5, 1.5))))
        colours = colours + share[:, None] * (paint - colours)
    if rng.random() < 0.4:  # tapered along z
        vertices = vertices * np.column_stack(
            [*[1 + rng.uniform(-0.4, 0.4) * vertices[:, 2]] * 2, np.ones(len(vertices))]
        )
    centre = (vertices.min(0) + vertices.max(0)) / 2
    vertices = (vertices - centre) * FIT_RADIUS / np.linalg.norm(vertices - centre, axis=1).max()
    colours = np.clip(colours, 0, 255).astype(np.uint8)
    return Mesh(vertices=vertices, faces=faces, normals=normals, colours=colours, name=f"part{seed}")


def corner_normals(body: trimesh.Trimesh, sharp: float = 35.0) -> np.ndarray:
    """Smooth where faces meet at less than so many degrees, flat at sharper edges."""
    flat = np.repeat(body.face_normals[:, None], 3, 1)
    smooth = body.vertex_normals[body.faces]
    return np.where((flat * smooth).sum(-1, keepdims=True) > np.cos(np.radians(sharp)), smooth, flat)


class ToldPart(nn.Module):
    """The tokens of an image, and added to each the vector of its part, whose number is in the first pixel."""

    def __init__(self, stem: nn.Module, dim: int):
        super().__init__()
        self.stem, self.parts = stem, nn.Embedding(MOST_PARTS, dim)
        nn.init.normal_(self.parts.weight, std=0.3)

    def forward(self, images: Tensor) -> Tensor:
        number = (127.5 * (images[:, 0, 0, 0] + 1)).round().long()  # images are in [-1, 1]
        return self.stem(images) + self.parts(number)[:, None]


class ManyParts(AQuaMaM):
    """One network for many parts, each told to it."""

    kind = "many parts"

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.embed = ToldPart(self.embed, config.dim)

    @classmethod
    def around(cls, model: AQuaMaM) -> "ManyParts":
        """The same network, told nothing yet."""
        many = cls(model.config)
        state = {re.sub(r"^embed\.", "embed.stem.", name): value for name, value in model.state_dict().items()}
        many.load_state_dict({**state, "embed.parts.weight": many.embed.parts.weight})
        return many

    def alone(self, parts: int) -> AQuaMaM:
        """The network without its parts: their mean vector is added to the positions of the image's tokens."""
        plain = AQuaMaM(self.config)
        state = {re.sub(r"^embed\.stem\.", "embed.", name): value for name, value in self.state_dict().items()}
        mean = state.pop("embed.parts.weight")[:parts].mean(0)
        state["position"][: self.config.prefix_tokens] += mean
        plain.load_state_dict(state)
        return plain


class ToldDataset(PhotoDataset):
    """Photograph-like renders with the number of the part in the first pixel."""

    def batch(self, indices: Iterable[int], *, unreadable: str = "raise") -> Batch:
        batch = super().batch(indices, unreadable=unreadable)
        batch.images[:, :, 0, 0] = torch.tensor([self.classes.index(name) for name in batch.labels])[:, None]
        return batch


KINDS[ManyParts.kind] = (__name__, "ManyParts", "ModelConfig")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=85.0)
    parser.add_argument("--from", dest="start", help="a model whose weights to start from")
    parser.add_argument("--sheet", type=Path, help="draw the parts to this file instead")
    args = parser.parse_args()
    parts = [one for one in map(part, range(MOST_PARTS)) if len(one.faces) <= FACES][: args.parts]
    if args.sheet:
        q = Rotation.random(len(parts), random_state=0).as_matrix()
        views = np.concatenate([render(one, q[k : k + 1], RenderSettings(size=96)) for k, one in enumerate(parts)])
        contact_sheet(views, columns=16).save(args.sheet)
        return
    chosen = preset("die-small")
    train = replace(chosen.train, time_budget=60 * args.minutes, threads=1, validation_size=1000)
    model = replace(chosen.model, pose=True)
    data = ToldDataset(parts, model.image_size, split="train")
    valid = ToldDataset(parts, model.image_size, split="valid", length=train.validation_size)
    start = ManyParts.around(load(args.start)) if args.start else None
    Trainer(ManyParts.kind, model.to_dict(), train, data, valid, args.out, start_from=start).fit()
    learned = load(args.out / "best.safetensors")
    learned.calibration = Calibration()
    print(save_model(learned.alone(len(parts)), args.out / "base.safetensors", {"trained": learned.info}, half=True))


if __name__ == "__main__":
    main()
