"""Promises of the solids: what they show, and which rotations leave them alone."""

import numpy as np
import pytest
import torch
from parts import written
from scipy.ndimage import label
from scipy.spatial.transform import Rotation

from aquamam.geometry.rotations import multiply
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import DIE_FACES, NAMES, mesh_of, open_object, solid

SMALL = RenderSettings(size=64)
FACE_ALIGNED = Rotation.create_group("O").as_matrix()


def rotations(n: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(Rotation.random(n, random_state=seed).as_quat())


def difference(name: str, q: torch.Tensor, others: torch.Tensor) -> np.ndarray:
    """Mean over the pixels of the largest difference of a channel, q (n, 4) against others (n, e, 4), as (n, e)."""
    mesh = solid(name).mesh
    images, seen = render(mesh, q, SMALL).astype(int), render(mesh, others, SMALL).astype(int)
    return np.abs(seen - images[:, None]).max(-1).mean((-1, -2))


@pytest.mark.parametrize("name", NAMES)
def test_equivalent_rotations_look_the_same(name):
    q = rotations(5)
    others = solid(name).symmetry.equivalents(q, count=11)  # which do not map facets to facets
    mesh = solid(name).mesh
    gap = np.abs(render(mesh, others, SMALL).astype(int) - render(mesh, q, SMALL).astype(int)[:, None]).max(-1)
    assert (gap > 1).mean() < 1e-4  # a sample on the outline of a round solid may fall to either side
    assert gap.mean() < 0.02


@pytest.mark.parametrize("name", NAMES)
def test_no_other_rotation_looks_the_same_from_everywhere(name):
    """Not the symmetries of the solid without its mark either."""
    group, still = solid(name).symmetry, torch.tensor([[0.0, 0, 0, 1]], dtype=torch.float64)
    q = rotations(16, seed=1)  # views
    unmarked = solid({"tetX": "tet", "cylO": "cyl", "die": "cube"}.get(name, "cube")).symmetry.equivalents(still, 12)[0]
    g = torch.cat([rotations(40, seed=2), unmarked])  # candidates
    moved = multiply(q[:, None], g[group.distance(still, g) > 0.15])
    assert (difference(name, q, moved).max(0) > 0.5).all()


@pytest.mark.parametrize("name", NAMES)
def test_faces_look_outwards_and_no_rotation_leaves_the_view(name):
    corners = solid(name).mesh.vertices[solid(name).mesh.faces]
    a, b, c = corners.swapaxes(0, 1)
    assert ((np.cross(b - a, c - a) * corners.mean(1)).sum(-1) > 0).all()
    covered = render(solid(name).mesh, rotations(40), SMALL, alpha=True)[..., 3] > 0
    assert not covered[:, [0, -1]].any()
    assert not covered[:, :, [0, -1]].any()
    assert covered.mean() > 0.1


def test_an_object_is_a_solid_or_a_file(tmp_path):
    assert open_object("die") is solid("die")
    assert mesh_of(open_object(str(written(solid("tet").mesh, tmp_path / "part.stl")))).name == "part"


def number_towards(R: np.ndarray, direction: tuple[int, int, int]) -> int:
    return max(DIE_FACES, key=lambda number: (R @ np.array(DIE_FACES[number][0])) @ np.array(direction))


def pips(image: np.ndarray) -> int:
    """White spots that touch no edge of the image: the background does."""
    labels, n = label(image[..., 1] > 110)
    edge = set(np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))) - {0}
    return n - len(edge)


def test_the_die_is_right_handed_and_five_faces_the_camera():
    assert number_towards(np.eye(3), (0, 0, 1)) == pips(render(solid("die").mesh, np.eye(3), SMALL)) == 5
    for number, (normal, _, _) in DIE_FACES.items():
        assert DIE_FACES[7 - number][0] == tuple(-x for x in normal)
    assert np.linalg.det(np.array([DIE_FACES[k][0] for k in (1, 2, 3)])) == pytest.approx(1)


def test_every_face_shows_its_number_of_pips_at_64_pixels():
    images = render(solid("die").mesh, FACE_ALIGNED, SMALL)
    assert [pips(image) for image in images] == [number_towards(R, (0, 0, 1)) for R in FACE_ALIGNED]
