"""How well a model tells where a part is: python runs/pose_errors.py MODEL [--count 500]

Fresh photograph-like pictures with known poses: cameras 4 to 15 radii away, boxes off by up to 10 % in place and 15 %
in size. Errors of translations are shares of the distance, along the line of sight and sideways.
"""

import argparse

import numpy as np
import torch
from scipy.spatial.transform import Rotation

import aquamam
from aquamam.cli.evaluate import SEED
from aquamam.data.random import haar, words
from aquamam.geometry.camera import NOMINAL, Crop
from aquamam.posterior.poses import Pose, PoseDistribution
from aquamam.rendering.known import known_object
from aquamam.rendering.photo import photograph

LEVELS = (0.5, 0.9, 0.95)
BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=500)
    args = parser.parse_args()
    model = aquamam.load(args.model)
    known = known_object(model)
    assert known is not None
    generator, columns = torch.Generator().manual_seed(0), []
    for start in range(0, args.count, BATCH):
        numbers = np.arange(start, min(start + BATCH, args.count))
        q, keys = haar(SEED, "poses", numbers), words(SEED, "poses/keys", numbers, 1)[:, 0]
        matrices = Rotation.from_quat(q).as_matrix()
        images, windows, distances = photograph(known.mesh, matrices, keys, side=model.config.image_size)
        # with a focal length of one, a part of radius r at distance z appears as large as r / z
        sides = known.mesh.radius / (distances * NOMINAL * np.exp(windows[:, 2]))
        crops = [Crop(turn=torch.tensor([0.0, 0, 0, 1]).double(), focal=1.0, side=side) for side in sides]
        with torch.no_grad():
            poses = PoseDistribution(model(torch.from_numpy(images)), crops, radius=known.mesh.radius)
            truth = poses.to_pose(torch.from_numpy(q), torch.from_numpy(windows))
            found, score = poses.mode, poses.region_score(truth, generator=generator)
        columns.append(np.concatenate([errors(truth, found), score.numpy()[None]]))
    depth, sideways, score = np.concatenate(columns, 1)
    print(f"{args.model}: {args.count} pictures; median errors in shares of the distance")
    print(f"along the line of sight {np.median(depth):.2%}, sideways {np.median(sideways):.2%}")
    for level in LEVELS:
        share = float((score <= level).mean())
        print(f"{level:.0%} regions of poses hold {share:.1%} +- {np.sqrt(level * (1 - level) / len(score)):.1%}")


def errors(truth: Pose, found: Pose) -> np.ndarray:
    """Along the true line of sight, and across it."""
    distance = truth.translation.norm(dim=-1, keepdim=True)
    off = found.translation - truth.translation
    along = (off * truth.translation / distance).sum(-1, keepdim=True)
    across = (off - along * truth.translation / distance).norm(dim=-1, keepdim=True)
    return torch.cat([along.abs() / distance, across / distance], -1).T.numpy()


if __name__ == "__main__":
    main()
