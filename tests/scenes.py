"""Small BOP data sets whose photographs are renders of solids at known poses, and a model that tells poses."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from networks import tiny_model
from parts import written
from PIL import Image

from aquamam.geometry.camera import Camera
from aquamam.geometry.rotations import opencv_to_opengl, quat_to_matrix, random_quat
from aquamam.network.model import AQuaMaM
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid

WIDTH, HEIGHT = 160, 120
CAMERA = Camera(fx=200.0, fy=200.0, cx=79.5, cy=59.5)  # the middle of the image, as OpenCV counts
RADIUS = math.sqrt(3)  # of the die, whose unit is called a millimetre here


def picture(R: np.ndarray, t: np.ndarray, name: str = "die") -> np.ndarray:
    """A solid at a pose in our camera's frame, as the whole camera sees it."""
    mesh = solid(name).mesh
    there = replace(mesh, vertices=mesh.vertices @ R.T + t + (0, 0, 8))  # the renderer's camera stands at (0, 0, 8)
    fov = 2 * math.degrees(math.atan(HEIGHT / 2 / CAMERA.fy))
    return render(there, np.eye(3), RenderSettings(size=(HEIGHT, WIDTH), fov_deg=fov, supersample=4))


def box_of(pixels: np.ndarray) -> list[int]:
    """Left, top, width, height of what is not white."""
    rows, columns = np.nonzero((pixels < 255).any(-1))
    left, top = int(columns.min()), int(rows.min())
    return [left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top]


def bop_folder(root: Path, count: int = 3) -> Path:
    """`count` photographs of one die each, object 7, in scene 3."""
    generator = torch.Generator().manual_seed(0)
    q = random_quat((count,), generator=generator, dtype=torch.float64)
    t = torch.rand((count, 3), generator=generator, dtype=torch.float64) * torch.tensor([6.0, 4.0, 4.0])
    t = t + torch.tensor([-3.0, -2.0, -22.0])
    scene = root / "test" / "000003"
    (scene / "rgb").mkdir(parents=True)
    (root / "models").mkdir()
    truths, infos = {}, {}
    for i in range(count):
        pixels = picture(quat_to_matrix(q[i]).numpy(), t[i].numpy())
        Image.fromarray(pixels).save(scene / "rgb" / f"{i:06d}.png")
        R = quat_to_matrix(opencv_to_opengl(q[i]))
        where = (t[i] * torch.tensor([1.0, -1.0, -1.0])).tolist()
        truths[str(i)] = [{"obj_id": 7, "cam_R_m2c": R.flatten().tolist(), "cam_t_m2c": where}]
        infos[str(i)] = [{"bbox_visib": box_of(pixels), "visib_fract": 1.0}]
    cameras = {key: {"cam_K": [200.0, 0, 79.5, 0, 200.0, 59.5, 0, 0, 1]} for key in truths}
    info = {"7": {"diameter": 2 * RADIUS} | {f"min_{a}": -1.0 for a in "xyz"} | {f"size_{a}": 2.0 for a in "xyz"}}
    for name, value in (("gt", truths), ("gt_info", infos), ("camera", cameras)):
        (scene / f"scene_{name}.json").write_text(json.dumps(value))
    (root / "models" / "models_info.json").write_text(json.dumps(info))
    written(solid("die").mesh, root / "models" / "obj_000007.ply")
    return root


def pose_model() -> AQuaMaM:
    """An untrained model of the die that tells poses."""
    model = tiny_model(layers=2, pose=True)
    model.learn(part={"radius": RADIUS, "centre": [0.0, 0.0, 0.0], "unit": "mm"}, data={"objects": [{"name": "die"}]})
    return model
