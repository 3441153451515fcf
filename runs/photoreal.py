"""Physically based pictures of a solid of ours, to judge models on: python runs/photoreal.py OUT [--seed N] [...]

Path-traced by Mitsuba 3 (pip install mitsuba): sun and sky, rooms and landscapes as light and background, plastic of
drawn gloss, tables with contact shadows, walls; then lens blur, exposure, white balance and noise of a camera.
`centred` pictures have the camera of `aquamam render`; `detector` pictures are the crops of detectors' boxes, as in
`aquamam.rendering.photo`. Picture i of a mode is a function of the seed, the mode and i. OUT gets one sheet of pictures
for each mode and photoreal.json; `aquamam evaluate MODEL --data OUT` judges a model on them, and the set that ships
with the package is that of seed 20, `--centred 100 --detector 200`. One picture takes some seconds.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import mitsuba as mi
import numpy as np
from environments import Rng, landscape, log_uniform, pattern, room
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

from aquamam.data.random import haar
from aquamam.geometry.camera import MARGIN, NOMINAL
from aquamam.rendering.framing import SCALE, SHIFT
from aquamam.rendering.meshes import GREY, Mesh
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import mesh_of, open_object

MODES = ("centred", "detector")
NEAREST, FARTHEST = 4.0, 15.0  # distances of detectors' crops in radii
FINE = 2  # rendered pixels along a pixel of the picture
SAMPLES = 64  # a rendered pixel
COLUMNS = 20  # pictures in a row of a sheet

mi.set_variant("scalar_rgb")


def rotating(matrix: np.ndarray) -> Any:
    return mi.ScalarTransform4f(np.block([[matrix, np.zeros((3, 1))], [np.zeros((1, 3)), np.ones((1, 1))]]))


def frame(up: np.ndarray, rng: Rng, axis: int) -> np.ndarray:
    """A rotation that takes an axis to `up`, the others anywhere."""
    spin = rng.normal(size=3)
    first = np.cross(up, spin) / np.linalg.norm(np.cross(up, spin))
    columns = [first, np.cross(up, first), up]
    return np.stack(columns if axis == 2 else [columns[1], columns[2], columns[0]], -1)


def plane(rng: Rng, normal: np.ndarray, offset: float, half: float, unit: float) -> tuple[str, dict[str, Any]]:
    """A patterned square at `offset` along its normal, its pattern repeated every `unit`."""
    name, pixels = pattern(rng)
    repeated = mi.ScalarTransform4f().scale(2 * half / unit)
    tiled = {"type": "bitmap", "bitmap": mi.Bitmap(pixels.astype(np.float32)), "raw": True, "to_uv": repeated}
    matt = {"type": "diffuse", "reflectance": tiled}
    if rng.random() < 0.3:
        matt = {"type": "roughplastic", "diffuse_reflectance": tiled, "alpha": rng.uniform(0.1, 0.4)}
    place = rotating(frame(normal, rng, 2)) @ mi.ScalarTransform4f().translate([0, 0, offset]).scale(half)
    return name, {"type": "rectangle", "to_world": place, "bsdf": {"type": "twosided", "bsdf": matt}}


def surface_of(rng: Rng, mesh: Mesh) -> dict[str, Any]:
    """Plastic with the mesh's paint."""
    paint: dict[str, Any] = {"type": "rgb", "value": [(c / 255) ** 2.2 for c in GREY]}
    if mesh.texture is not None:
        paint = {"type": "bitmap", "bitmap": mi.Bitmap(np.ascontiguousarray(mesh.texture[::-1]))}
    index, rough = rng.uniform(1.4, 1.65), log_uniform(rng, 0.04, 0.5)
    kind = rng.choice(["plastic", "roughplastic", "principled"], p=[0.2, 0.5, 0.3])
    if kind == "principled":
        gloss = {"roughness": math.sqrt(rough), "specular": rng.uniform(0.2, 0.8), "clearcoat": rng.uniform(0, 0.6)}
        return {"type": "principled", "base_color": paint, **gloss, "clearcoat_gloss": rng.uniform(0.5, 1.0)}
    rest = {"alpha": rough} if kind == "roughplastic" else {}
    return {"type": str(kind), "diffuse_reflectance": paint, "int_ior": index, "nonlinear": True, **rest}


def surroundings(rng: Rng, R: np.ndarray, mesh: Mesh, distance: float) -> tuple[dict[str, str], dict[str, Any]]:
    """Light, table and wall about the object, and their names."""
    told = {"light": str(rng.choice(["sun and sky", "room", "landscape"], p=[0.3, 0.45, 0.25]))}
    told["place"] = str(rng.choice(["table", "free", "wall"], p=[0.55, 0.3, 0.15]))
    corners = mesh.vertices[np.unique(mesh.faces)] @ R.T
    if told["place"] == "table":  # it lies on a face: of the directions that face the camera, the one most upwards
        normals = np.concatenate([R.T, -R.T])
        up = max((n for n in normals if n[2] > 0.03), key=lambda n: n[1])
    else:
        lowest = 0.05 if told["light"] == "sun and sky" else -0.3  # the camera stands above the ground
        pitch, roll = rng.uniform(lowest, 0.9), rng.normal(0, 0.15)
        up = Rotation.from_euler("z", roll).apply([0, math.cos(pitch), math.sin(pitch)])
    scene: dict[str, Any] = {}
    if told["place"] == "table" or told["light"] == "sun and sky":  # the sky has no lower half
        below = (corners @ up).min() - 0.002 - (0 if told["place"] == "table" else rng.uniform(0.5, 6))
        half = rng.uniform(4, 12) if told["light"] == "room" else 1000.0
        told["ground"], scene["ground"] = plane(rng, up, below, half, log_uniform(rng, 2, 12))
    if told["place"] == "wall":
        back = Rotation.from_euler("xy", rng.normal(0, 0.3, 2)).apply([0, 0, 1])
        told["wall"], scene["wall"] = plane(rng, back, -rng.uniform(1.75, 5), distance, rng.uniform(2, 10))
    if told["light"] == "sun and sky":
        elevation, azimuth = math.radians(rng.uniform(12, 80)), rng.uniform(0, 2 * math.pi)
        sun = [math.cos(elevation) * math.cos(azimuth), math.cos(elevation) * math.sin(azimuth), math.sin(elevation)]
        world = frame(up, rng, 2)
        sky = {"type": "sunsky", "sun_direction": (world @ sun).tolist(), "turbidity": rng.uniform(2, 8)}
        scene["light"] = {**sky, "sun_aperture": 1.5, "to_world": rotating(world)}
    else:
        pixels = room(rng) if told["light"] == "room" else landscape(rng)
        light = {"type": "envmap", "bitmap": mi.Bitmap(pixels.astype(np.float32))}
        scene["light"] = {**light, "to_world": rotating(frame(up, rng, 1))}
    return told, scene


def developed(rng: Rng, light: np.ndarray, side: int) -> np.ndarray:
    """The picture (side, side, 3) that a camera makes of light: lens, white balance, exposure, noise, tone curve."""
    light = gaussian_filter(light, (*[rng.uniform(0.1, 0.6) * FINE] * 2, 0))
    light = light.reshape(side, FINE, side, FINE, 3).mean((1, 3))
    place = np.linspace(-1, 1, side) ** 2
    weight = np.exp(-2 * (place[:, None] + place))[..., None]
    white = (light**5).mean((0, 1)) ** 0.2  # shades of grey (Finlayson and Trezzi 2004)
    light = light * (white.mean() / white) ** rng.uniform(0.3, 0.9) * np.exp(rng.uniform(-0.05, 0.05, 3))
    metered = math.exp((np.log(light.mean(-1, keepdims=True) + 1e-4 * white.mean()) * weight).sum() / weight.sum())
    gain = 0.18 * 2 ** rng.uniform(-0.8, 0.8) / metered
    light = light * min(gain, 2.5 / np.quantile(light, 0.97))
    electrons = log_uniform(rng, 1000, 20000)  # of a saturated pixel, after demosaicing
    light = light + rng.normal(size=light.shape) * np.sqrt(light.clip(0) / electrons + rng.uniform(0, 0.004) ** 2)
    light = light.clip(0)
    knee = rng.uniform(0.6, 0.95)  # highlights are rolled off above it
    light = np.where(light > knee, knee + (1 - knee) * (1 - np.exp(-(light - knee) / (1 - knee))), light)
    curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light.clip(1e-9) ** (1 / 2.4) - 0.055)
    contrast = rng.uniform(0, 0.35)
    return np.rint(255 * (curve + contrast * curve * (1 - curve) * (2 * curve - 1)).clip(0, 1)).astype(np.uint8)


def take(mesh: Mesh, file: Path, mode: str, seed: int, number: int, side: int) -> tuple[np.ndarray, dict[str, Any]]:
    """One picture, and what is known of it: rotation (xyzw), distance and window in the sense of `rendering.photo`."""
    rng = np.random.default_rng([seed, MODES.index(mode), number])
    q = haar(seed, f"photoreal/{mode}", np.array([number]))[0]
    R, usual = Rotation.from_quat(q).as_matrix(), RenderSettings()
    vertices = mesh.vertices[np.unique(mesh.faces)]
    radius = float(np.linalg.norm(vertices, axis=1).max())
    distance, x, y, size = usual.distance, 0.0, 0.0, 2 * math.tan(math.radians(usual.fov_deg) / 2)
    if mode == "detector":
        distance = radius * log_uniform(rng, NEAREST, FARTHEST)
        seen = vertices @ R.T
        points = seen[:, :2] / (distance - seen[:, 2:])
        x, y = (points.min(0) + points.max(0)) / 2 + rng.uniform(-SHIFT, SHIFT, 2) * np.ptp(points, axis=0)
        size = MARGIN * math.exp(rng.uniform(-SCALE, SCALE)) * np.ptp(points, axis=0).max()
    window = [-x / size, y / size, math.log(radius / distance / size / NOMINAL)]
    told, scene = surroundings(rng, R, mesh, distance)
    scene["object"] = {"type": "ply", "filename": str(file), "face_normals": mesh.normals is None}
    scene["object"] |= {"to_world": rotating(R), "bsdf": surface_of(rng, mesh)}
    told["surface"] = scene["object"]["bsdf"]["type"]
    film = {"type": "hdrfilm", "width": side * FINE, "height": side * FINE, "rfilter": {"type": "box"}}
    scene["sensor"] = {
        "type": "perspective",
        "to_world": mi.ScalarTransform4f().look_at(origin=[0, 0, distance], target=[0, 0, 0], up=[0, 1, 0]),
        "fov": 2 * math.degrees(math.atan(size / 2)),
        "principal_point_offset_x": -window[0],  # Mitsuba's is where the film's middle lies from the optical axis
        "principal_point_offset_y": -window[1],
        "film": {**film, "pixel_format": "rgb", "component_format": "float32"},
        "sampler": {"type": "independent", "sample_count": SAMPLES},
    }
    world = mi.load_dict({"type": "scene", "integrator": {"type": "path", "max_depth": 6}, **scene})
    light = np.array(mi.render(world, seed=number), np.float64)
    row = {"rotation": q.tolist(), "distance": distance, "window": window, **told}
    return developed(rng, np.minimum(light, 50 * light.mean()), side), row


def write_ply(mesh: Mesh, path: Path) -> None:
    """The mesh with a vertex for each corner."""
    corners = 3 * len(mesh.faces)
    has = {"has_vertex_normals": mesh.normals is not None, "has_vertex_texcoords": mesh.uv is not None}
    out = mi.Mesh("object", corners, len(mesh.faces), **has)
    params = mi.traverse(out)
    arrays = {"positions": mesh.vertices[mesh.faces], "normals": mesh.normals, "texcoords": mesh.uv}
    for name, values in arrays.items():
        if values is not None:
            params[f"vertex_{name}"] = np.ravel(values).astype(np.float32)
    params["faces"] = np.arange(corners, dtype=np.uint32)
    params.update()
    out.write_ply(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--object", default="die", help="a solid of ours with a texture or without paint")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--size", type=int, default=64, help="pixels along a picture")
    for mode, count in zip(MODES, (100, 200)):
        parser.add_argument(f"--{mode}", type=int, default=count, metavar="N", help="pictures")
    args = parser.parse_args()
    mesh = mesh_of(open_object(args.object))
    done = args.out / f"{args.object}-{args.seed}-{args.size}"  # of a run that was stopped
    done.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {"object": args.object, "mesh": mesh.hash, "seed": args.seed, "size": args.size}
    with tempfile.TemporaryDirectory() as folder:
        write_ply(mesh, file := Path(folder) / "object.ply")
        for mode in MODES:
            told[mode], images = [], []
            for i in range(getattr(args, mode)):
                kept = done / f"{mode}-{i}.png"
                if not kept.with_suffix(".json").exists():
                    image, row = take(mesh, file, mode, args.seed, i, args.size)
                    Image.fromarray(image).save(kept)
                    kept.with_suffix(".json").write_text(json.dumps(row))
                    print(kept, {k: v for k, v in row.items() if isinstance(v, str)}, flush=True)
                images.append(np.asarray(Image.open(kept)))
                told[mode].append(json.loads(kept.with_suffix(".json").read_text()))
            if not images:
                continue
            rows = [np.concatenate(images[k : k + COLUMNS], 1) for k in range(0, len(images), COLUMNS)]
            rows = [np.pad(row, ((0, 0), (0, rows[0].shape[1] - row.shape[1]), (0, 0))) for row in rows]
            sheet = Image.fromarray(np.concatenate(rows))
            sheet.save(args.out / f"{mode}.jpg", quality=95, subsampling=0)  # as cameras store them
    lines = json.dumps(told).replace('{"rotation"', '\n{"rotation"')
    (args.out / "photoreal.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
