"""Promises of the renderer."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_fill_holes
from scipy.spatial.transform import Rotation

from aquamam.rendering.meshes import Mesh, crease_normals
from aquamam.rendering.render import RenderSettings, contact_sheet, render
from aquamam.rendering.solids import solid

SMALL = RenderSettings(size=48)
TAN = np.tan(np.radians(26.98) / 2)
I = np.eye(3)


def rotations(n: int, seed: int = 0) -> np.ndarray:
    return Rotation.random(n, random_state=seed).as_quat()


def quad(z: float = 0.0, half: float = 1.0, **paint) -> Mesh:
    """A square that faces the camera."""
    corners = np.array([(-half, -half, z), (half, -half, z), (half, half, z), (-half, half, z)])
    return Mesh(vertices=corners, faces=np.array([(0, 1, 2), (0, 2, 3)]), **paint)


QUAD_UV = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float32)[np.array([(0, 1, 2), (0, 2, 3)])]


def bumpy_ball(rings: int = 24, paint: str = "plain", smooth: bool = True) -> Mesh:
    polar, turn = np.meshgrid(np.linspace(0, np.pi, rings + 1), 2 * np.pi * np.arange(rings) / rings, indexing="ij")
    radius = 1.4 + 0.2 * np.sin(3 * turn) * np.sin(polar) ** 2
    directions = np.stack([np.sin(polar) * np.cos(turn), np.cos(polar), np.sin(polar) * np.sin(turn)], -1)
    i, j = np.meshgrid(np.arange(rings), np.arange(rings), indexing="ij")
    a, b = i * rings + j, i * rings + (j + 1) % rings
    faces = np.concatenate([np.stack([a, b, b + rings], -1), np.stack([a, b + rings, a + rings], -1)]).reshape(-1, 3)
    vertices = (radius[..., None] * directions).reshape(-1, 3)
    area = np.linalg.norm(np.cross(*(vertices[faces[:, k]] - vertices[faces[:, 0]] for k in (1, 2))), axis=1)
    faces = faces[area > 1e-9]
    rng = np.random.default_rng(0)
    return Mesh(
        vertices=vertices,
        faces=faces,
        normals=crease_normals(vertices, faces, 70) if smooth else None,
        colours=rng.integers(0, 180, (len(vertices), 3)).astype(np.uint8) if paint == "colours" else None,
        uv=3 * rng.random((len(faces), 3, 2)) - 1 if paint == "texture" else None,
        texture=rng.integers(0, 180, (37, 50, 3)).astype(np.uint8) if paint == "texture" else None,
    )


def test_an_image_does_not_depend_on_its_batch_or_thread():
    for mesh in (solid("die").mesh, bumpy_ball(paint="colours")):
        q = rotations(8)
        whole = render(mesh, q, SMALL)
        assert np.array_equal(whole[::-1], render(mesh, q[::-1], SMALL))
        assert np.array_equal(whole[5], render(mesh, q[5], SMALL))
        with ThreadPoolExecutor(2) as pool:
            halves = list(pool.map(render, [mesh] * 2, (q[:3], q[3:]), [SMALL] * 2))
        assert np.array_equal(whole, np.concatenate(halves))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (RenderSettings(size=32), "fe2b286650e5"),
        (RenderSettings(size=(24, 40), supersample=3, background=(1, 2, 3)), "46c9a81fe386"),
        (RenderSettings(size=32, distance=1.9, near=0.4, fov_deg=80), "76db939b4edd"),  # the near plane cuts
    ],
)
def test_bytes_stay_what_they_were(settings, expected):
    """A data set that was begun must go on with the same bytes, so a change of one is seen here."""
    q = np.array([(0, 0, 0, 1), (0.5, 0.5, 0.5, 0.5), (0.48, 0.6, 0, 0.64), (0, -0.28, 0.96, 0)])
    assert hashlib.sha256(render(solid("die").mesh, q, settings, alpha=True)).hexdigest()[:12] == expected


def test_quaternions_of_either_sign_and_matrices_give_one_image():
    mesh, q = solid("die").mesh, rotations(4)
    from_q = render(mesh, q, SMALL)
    assert np.array_equal(from_q, render(mesh, -q, SMALL))
    assert np.array_equal(from_q, render(mesh, torch.tensor(q), SMALL))
    matrices = Rotation.from_quat(q).as_matrix()
    assert np.abs(from_q.astype(int) - render(mesh, matrices, SMALL)).mean() < 0.01


@pytest.mark.parametrize("batch", [(), (0,), (1,), (2, 3), (2, 0)])
def test_any_batch_shape_is_kept(batch):
    q = np.broadcast_to([0.0, 0, 0, 1], (*batch, 4))
    assert render(solid("tet").mesh, q, SMALL).shape == (*batch, 48, 48, 3)
    assert render(solid("tet").mesh, np.broadcast_to(I, (*batch, 3, 3)), SMALL, alpha=True).shape == (*batch, 48, 48, 4)


def centre_of(image: np.ndarray) -> np.ndarray:
    """Mean (right, up) of what is covered, in pixels from the middle."""
    share = image[..., 3] / image[..., 3].sum()
    rows, columns = (np.indices(share.shape) * share).sum((1, 2))
    return np.array([columns + 0.5 - image.shape[1] / 2, image.shape[0] / 2 - rows - 0.5])


@pytest.mark.parametrize(("direction", "expected"), [((1, 0, 0), (1, 0)), ((0, 1, 0), (0, 1)), ((0, 0, 1), (0, 0))])
def test_camera_sees_x_to_the_right_and_y_up(direction, expected):
    mesh = replace(quad(half=0.1), vertices=quad(half=0.1).vertices + np.array(direction))
    pixels_a_unit = 224 / (2 * 8 * TAN)
    quarter = Rotation.from_euler("z", 90, degrees=True).as_matrix()  # x_cam = R x_obj: what was right is up
    for R in (I, quarter):
        there = (R @ np.array([*expected, 0]))[:2] * pixels_a_unit
        assert np.allclose(centre_of(render(mesh, R, alpha=True)), there, atol=0.3)


@pytest.mark.parametrize("z", [-3.0, 0.0, 2.0, 6.0])
def test_size_in_the_image_follows_perspective(z):
    half = 0.3
    image = render(quad(z, half), I, RenderSettings(size=256, supersample=4), alpha=True)
    side = 256 * half / ((8 - z) * TAN)
    assert np.sqrt(image[..., 3].sum() / 255) == pytest.approx(side, abs=0.15)


def test_wide_images_keep_the_vertical_angle_of_view():
    tall = render(solid("die").mesh, I, RenderSettings(size=60), alpha=True)
    wide = render(solid("die").mesh, I, RenderSettings(size=(60, 100)), alpha=True)
    assert np.array_equal(tall, wide[:, 20:80])


@pytest.mark.parametrize("rings", [12, 150])
def test_no_sample_falls_between_triangles(rings):
    covered = render(bumpy_ball(rings), rotations(6), RenderSettings(size=96, supersample=1), alpha=True)[..., 3] > 0
    assert all(np.array_equal(binary_fill_holes(image), image) for image in covered)


def test_nearer_faces_hide_farther_ones_in_any_order():
    near, far = quad(1.0, 0.5), quad(-1.0, 1.0)
    colours = np.array([(180, 0, 0)] * 4 + [(0, 180, 0)] * 4, np.uint8)
    both = Mesh(
        vertices=np.concatenate([near.vertices, far.vertices]),
        faces=np.concatenate([near.faces, far.faces + 4]),
        colours=colours,
    )
    image = render(both, I)
    assert np.array_equal(image, render(replace(both, faces=both.faces[::-1]), I))
    assert image[112, 112, 0] > 200 > 100 > image[112, 112, 1]
    assert image[112, 68, 1] > 200 > 100 > image[112, 68, 0]


def test_faces_have_two_sides():
    mesh, q = solid("icosa").mesh, rotations(3)
    inside_out = replace(mesh, faces=mesh.faces[:, ::-1])
    assert np.array_equal(render(mesh, q, SMALL), render(inside_out, q, SMALL))
    ball = bumpy_ball()
    assert ball.normals is not None
    turned = replace(ball, faces=ball.faces[:, ::-1], normals=-ball.normals[:, ::-1])
    assert np.abs(render(ball, q, SMALL).astype(int) - render(turned, q, SMALL)).max() <= 1


def test_what_crosses_the_near_plane_is_cut_there():
    floor = Mesh(  # from far ahead to far behind the camera
        vertices=np.array([(-90.0, -1, -90), (90, -1, -90), (90, -1, 90), (-90, -1, 90)]),
        faces=np.array([(0, 2, 1), (0, 3, 2)]),
    )
    settings = RenderSettings(size=64, fov_deg=90, near=1.5)
    covered = render(floor, I, settings, alpha=True)[..., 3] == 255
    up = 1 - (np.arange(64) + 0.5) / 32  # of the pixels' rays, at depth 1
    depth = -1 / up
    assert covered[(depth > 1.6) & (depth < 40)].all()
    assert not covered[(depth < 1.4) | (up > 0)].any()
    assert not render(quad(z=9.0), I, SMALL, alpha=True)[..., 3].any()  # behind the camera


def test_light_is_lambert_plus_ambient():
    settings = RenderSettings(size=32, light=(0.0, 3.0, 4.0), diffuse=0.5, ambient=0.3)
    image = render(quad(colours=np.full((4, 3), 200, np.uint8)), I, settings)
    assert (image[16, 16] == round(200 * (0.3 + 0.5 * 0.8))).all()
    away = render(quad(colours=np.full((4, 3), 200, np.uint8)), I, replace(settings, light=(0.0, 1.0, -1.0)))
    assert (away[16, 16] == 60).all()


def test_backgrounds_are_per_image():
    mesh, q = solid("cube").mesh, rotations(3)
    backgrounds = np.array([(0, 0, 0), (10, 200, 30), (255, 255, 255)])
    together = render(mesh, q, SMALL, backgrounds=backgrounds)
    for i in range(3):
        assert np.array_equal(
            together[i], render(mesh, q[i], replace(SMALL, background=tuple(backgrounds[i].tolist())))
        )


def test_alpha_is_the_share_of_covered_samples():
    rgba = render(quad(half=0.77), I, RenderSettings(size=50, background=(0, 0, 0)), alpha=True)
    assert set(np.unique(rgba[..., 3])) <= {0, 64, 128, 191, 255}
    full = rgba[25, 25, :3].astype(float)
    assert np.abs(rgba[..., :3] - full * rgba[..., 3:] / 255).max() <= 1


def test_a_mesh_of_one_triangle_shows_the_colours_of_its_corners():
    triangle = Mesh(
        vertices=np.array([(-1.0, -1, 0), (1, -1, 0), (0, 1, 0)]),
        faces=np.array([(0, 1, 2)]),
        colours=np.diag([180, 180, 180]).astype(np.uint8),
    )
    image = render(triangle, I, RenderSettings(size=64, ambient=1, diffuse=0))
    assert [int(image[row, column].argmax()) for row, column in ((46, 20), (46, 44), (20, 32))] == [0, 1, 2]


def test_texture_is_perspective_correct():
    ramp = np.zeros((4, 256, 3), np.uint8)
    ramp[..., 0] = np.arange(256)
    mesh = quad(half=1.5, uv=QUAD_UV, texture=ramp)
    tilt = np.radians(60)
    R = Rotation.from_rotvec([0, tilt, 0]).as_matrix()
    image = render(mesh, R, RenderSettings(size=101, supersample=1, ambient=1, diffuse=0))
    x = (np.arange(101) + 0.5 - 50.5) / 50.5 * TAN  # the middle row's rays meet s (cos, 0, -sin) at 8 - z
    s = 8 * x / (np.cos(tilt) - x * np.sin(tilt))
    inside = np.abs(s) < 1.4
    expected = 256 * (s + 1.5) / 3 - 0.5
    assert inside.sum() > 25
    assert np.abs(image[50, inside, 0] - expected[inside]).max() < 2


def test_a_fine_texture_far_away_becomes_grey_not_noise():
    checks = np.indices((512, 512)).sum(0) % 2 * 180
    mesh = quad(half=1.5, uv=QUAD_UV, texture=np.repeat(checks[..., None], 3, -1).astype(np.uint8))
    R = Rotation.from_euler("xz", [30, 20], degrees=True).as_matrix()
    rgba = render(mesh, R, RenderSettings(size=64, ambient=1, diffuse=0), alpha=True)
    grey = rgba[rgba[..., 3] == 255][:, 0]
    assert abs(grey.mean() - 90) < 2
    assert grey.std() < 3


def test_texture_repeats_outside_the_unit_square():
    texture = np.zeros((8, 8, 3), np.uint8)
    texture[:4] = 180
    once = quad(uv=QUAD_UV, texture=texture)
    assert np.array_equal(render(once, I, SMALL), render(replace(once, uv=QUAD_UV + np.float32(3)), I, SMALL))


def test_settings_survive_json():
    for settings in (RenderSettings(), RenderSettings(size=(30, 40), background="random", light=(1.0, 0.0, 0.5))):
        assert RenderSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_contact_sheet_has_a_cell_an_image():
    images = render(solid("die").mesh, rotations(7), RenderSettings(size=20))
    sheet = contact_sheet(images, columns=3, gap=2)
    assert sheet.size == (3 * 22 + 2, 3 * 22 + 2)
    assert np.array_equal(np.asarray(sheet)[24:44, 24:44], images[4])
    assert contact_sheet(images, columns=3, labels=["a"] * 7, gap=2).height > sheet.height
