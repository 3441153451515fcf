"""Symmetries are properties of objects, not of files: not of their places, axes, triangles or hidden parts."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from parts import box, joined, lifted, moved, mug, polygon, prism, remeshed, spring, torus
from refusals import refused
from scipy.spatial.transform import Rotation

from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.solids import NAMES, solid
from aquamam.shape.matching import Tolerance
from aquamam.shape.surface import Surface
from aquamam.shape.symmetries import find_symmetries, near_symmetries
from aquamam.shape.view_map import look_from, save_map, view_ambiguity

STILL = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)


def elsewhere(mesh: Mesh, seed: int) -> tuple[Mesh, Rotation]:
    """The object in other triangles, turned, scaled and moved away."""
    rng = np.random.default_rng(seed)
    turn = Rotation.from_quat(rng.normal(size=4))
    return moved(remeshed(mesh, rng), turn, rng.normal(size=3) * 3, math.exp(rng.normal())), turn


def same_group(a: SymmetryGroup, b: SymmetryGroup, degrees: float) -> bool:
    """Whether two groups have the same elements, up to an angle."""
    if (a.order, len(a.elements)) != (b.order, len(b.elements)):
        return False
    into = [one.distance(STILL, other.equivalents(STILL, 7)).max() for one, other in ((a, b), (b, a))]
    return float(max(into)) < math.radians(degrees)


@pytest.mark.parametrize("name", NAMES)
def test_every_solid_has_its_group_wherever_it_lies_and_however_it_is_cut(name):
    mesh, frame = elsewhere(solid(name).mesh, seed=NAMES.index(name))
    found = find_symmetries(mesh)
    assert found.group is not None
    assert same_group(found.group, solid(name).symmetry.conjugated(torch.from_numpy(frame.as_quat())), degrees=0.3)
    assert found.distance < 0.005
    assert found.seen.share < 0.002


PARTS = {
    "box of three sides": (box(1, 1.3, 2), "D2"),
    "square prism": (box(1, 1, 2), "D4"),
    "seven sides": (prism(polygon(7), 1.5), "D7"),
    "torus": (torus(), "revolution with flip"),
    "spring": (spring(), "C2"),
    "propeller": (joined(prism(polygon(3), 0.6, twist=0.6), lifted(prism(polygon(60, 0.3), 0.5), 0.5)), "C3"),
    "three boxes": (joined(box(1, 1, 3), box(2, 1, 1, at=(1, 0, -1)), box(1, 1.5, 1, at=(0, 0.75, 1))), "none"),
    "crossed boxes": (joined(box(1, 3, 1), box(3, 1, 1)), "D4"),
    "box in a box": (joined(box(1, 1, 1), box(0.2, 0.3, 0.1, at=(0.1, 0.2, 0.1))), "O"),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_have_the_groups_that_one_sees(part):
    mesh, name = PARTS[part]
    assert find_symmetries(elsewhere(mesh, seed=1)[0]).found.name == name


def test_paint_leaves_the_part_of_the_group_that_keeps_it():
    two, ball = box(1, 1, 2), solid("sphereX").mesh
    halves = np.where(two.vertices[:, 2:] > 0, (200, 30, 30), (30, 30, 200)).astype(np.uint8)
    assert find_symmetries(replace(two, colours=halves)).found.name == "C4"
    ring = np.where(np.abs(ball.vertices[:, 1:2]) < 0.3, 20, 180).repeat(3, 1).astype(np.uint8)
    found = find_symmetries(replace(ball, texture=None, uv=None, colours=ring))
    assert found.group is not None
    assert same_group(found.group, SymmetryGroup.revolution((0, 1, 0), flip=True), degrees=1)


def test_the_tolerance_decides_what_is_square_and_what_is_nearly_so():
    nearly = Surface.of(box(1, 1.06, 2))
    exact = find_symmetries(nearly)
    assert exact.found.name == "D2"
    assert find_symmetries(nearly, tolerance=Tolerance(distance=0.04, pixels=0.05)).found.name == "D4"
    near = near_symmetries(nearly, exact)
    assert {one.words.split(" about")[0] for one in near} >= {"turns by 90°"}
    assert all(0.01 < one.distance < 0.06 and 0 < one.seen.share < 0.3 for one in near)
    assert near == sorted(near, key=lambda one: one.seen)


def test_marks_that_only_shading_shows_are_seen():
    # a cap that leans by 12 degrees on a top that is 0.5 % of the radius high
    plate = prism(polygon(4, 2**0.5), 1.0)
    dent = joined(plate, moved(box(0.5, 0.25, 0.02), Rotation.from_rotvec([0.2, 0, 0]), (0.4, 0, 0.5)))
    assert find_symmetries(dent, tolerance=Tolerance(distance=0.05)).found.name == "none"


FLAT = Mesh(
    vertices=np.array([(0, 0, 0), (2, 0, 0), (2, 1, 0), (0, 1, 0)], float), faces=np.array([(0, 1, 2), (0, 2, 3)])
)
SHAPELESS = {
    "line": replace(FLAT, vertices=FLAT.vertices * (1, 0, 0)),
    "extent": replace(FLAT, vertices=np.ones((4, 3))),
    "pixels": joined(box(1, 1, 1), box(1e-4, 1e-4, 1e-4, at=(500, 0, 0))),
    "digits": moved(box(1, 1, 1), Rotation.identity(), (1e9, 0, 0), 1e-5),
}


@pytest.mark.parametrize("why", SHAPELESS)
def test_meshes_without_a_shape_are_refused_with_the_reason(why):
    refused(why, find_symmetries, SHAPELESS[why])


@pytest.mark.parametrize("scale", [1e-7, 1e7])
def test_size_and_sheets_do_not_matter(scale):
    found = find_symmetries(moved(FLAT, Rotation.identity(), (0, 0, 0), scale))
    assert found.found.name == "D2"
    assert found.centre == pytest.approx((scale, scale / 2, 0), abs=1e-6 * scale)


DIE, MUG = Surface.of(solid("die").mesh), Surface.of(mug(), centre=(0, 0, 0))
VIEWS = [
    (DIE, (0, 0, 1), 4),
    (DIE, (0, -1, 0), 2),
    (DIE, (1, 0, 1), 1),
    (MUG, (-1, 0, 0), math.inf),
    (MUG, (0, 1, 0), 2),
]


@pytest.mark.parametrize(("surface", "towards", "count"), VIEWS)
def test_a_view_has_the_symmetries_of_what_it_shows(surface, towards, count):
    """A face those of its pips; a mug from behind those of a cylinder, beside its own half turn: what is hidden cannot
    tell."""
    view = look_from(surface, towards)
    assert view.continuous if count == math.inf else (view.count, view.continuous) == (count, False)


def test_a_view_has_as_many_rotations_as_the_object_at_least(tmp_path):
    found = view_ambiguity(solid("tet").mesh, views=2)
    assert [view.count for view in found.views] == [12] * 2
    save_map(found, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_the_command_writes_what_bop_reads(tmp_path, prints):
    part = moved(box(2, 2, 3), Rotation.identity(), (10, 20, 30))
    lines = [f"v {x} {y} {z}" for x, y, z in part.vertices] + [f"f {a} {b} {c}" for a, b, c in part.faces + 1]
    (tmp_path / "part.obj").write_text("\n".join(lines))
    (tmp_path / "models_info.json").write_text('{"7": {"diameter": 1.0}}')
    arguments = [tmp_path / "part.obj", "--bop", tmp_path / "models_info.json", "--id", 3, "--json"]
    told = json.loads(prints("symmetries", *arguments))
    infos = json.loads((tmp_path / "models_info.json").read_text())
    assert set(infos) == {"7", "3"}
    assert infos["3"] == told["models_info"]
    assert infos["3"]["diameter"] == pytest.approx(17**0.5)
    poses = np.array(infos["3"]["symmetries_discrete"]).reshape(-1, 4, 4)
    assert len(poses) == 7
    for pose in poses:  # the corners stay where corners are, in the file's coordinates
        corners = part.vertices @ pose[:3, :3].T + pose[:3, 3]
        apart = np.linalg.norm(corners[:, None] - part.vertices, axis=-1).min(1)
        assert apart.max() < 0.01
    assert same_group(SymmetryGroup.from_bop(infos["3"]), SymmetryGroup.dihedral(4), degrees=0.3)


def test_the_command_speaks(prints):
    text = prints("symmetries", "tetX", "--suggest")
    assert "geometry alone: 12 rotations look the same (tetrahedral)" in text
    assert "geometry and colours: 3 rotations look the same (C3)" in text
    assert "half turn about" in text
