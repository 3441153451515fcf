"""Render your own mesh under random rotations and look at the sheet.

    python examples/render_mesh.py part.stl --up z --out sheet.png

Without a file it renders a die, to show what comes out.
"""

import argparse

import numpy as np

from aquamam.rendering.meshes import load_mesh
from aquamam.rendering.render import RenderSettings, contact_sheet, render
from aquamam.rendering.solids import solid

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("mesh", nargs="?", help=".obj, .ply, .stl, .glb, .gltf or .off")
parser.add_argument("--up", default="y", choices=["x", "y", "z"], help="the file's axis that points up")
parser.add_argument("--count", type=int, default=24)
parser.add_argument("--size", type=int, default=128)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="sheet.png")
args = parser.parse_args()

# Centred, and scaled so that no rotation leaves the view: load_mesh's defaults.
mesh = load_mesh(args.mesh, up=args.up) if args.mesh else solid("die").mesh

# Unit normals in four dimensions, divided by their length, are uniform rotations (xyzw, q_w >= 0).
q = np.random.default_rng(args.seed).normal(size=(args.count, 4))
q *= np.where(q[:, 3:] < 0, -1, 1) / np.linalg.norm(q, axis=1, keepdims=True)
q[0] = 0, 0, 0, 1  # the first picture is the mesh as its file has it

images = render(mesh, q, RenderSettings(size=args.size))
labels = [" ".join(f"{x:.2f}" for x in row) for row in q]
contact_sheet(images, columns=8, labels=labels).save(args.out)
print(f"{mesh}: {args.count} views in {args.out}, quaternions xyzw below each; mesh hash {mesh.hash[:12]}")
