"""A small data set, also written by a process of its own: python render_small.py OUT; and what a folder holds."""

import sys
from pathlib import Path

from aquamam.data.disk.layout import Manifest
from aquamam.data.disk.writing import RenderSpec, write_dataset
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid

SETTINGS = RenderSettings(size=12, supersample=1)


def ingredients(
    encoding: str = "raw", seed: int = 3, shard_size: int = 7, **splits: int
) -> tuple[RenderSpec, Manifest]:
    die = solid("die")
    manifest = Manifest(
        objects=[{"name": "die", "mesh": die.mesh.hash, "symmetry": die.symmetry.to_dict()}],
        settings=SETTINGS.to_dict(),
        seed=seed,
        splits=splits or {"train": 30, "test": 5},
        shard_size=shard_size,
        encoding=encoding,
    )
    return RenderSpec(names=("die",), meshes=(die.mesh,), settings=SETTINGS, seed=seed), manifest


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


if __name__ == "__main__":
    write_dataset(Path(sys.argv[1]), *ingredients(shard_size=50, train=3000, test=40), workers=2)
