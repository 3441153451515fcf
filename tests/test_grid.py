"""The equivolumetric grid is IPDF's, and its cells cut SO(3) into equal parts."""

import math

import healpy
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

from aquamam.geometry import grid
from aquamam.geometry import rotations as rot


def is_uniform(index: torch.Tensor, cells: int) -> bool:
    """Chi-square at p = 0.001, both tails: counts too even are wrong as well."""
    counts = torch.bincount(index, minlength=cells).double()
    expected = len(index) / cells
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return bool(chi2.ppf(0.0005, cells - 1) < statistic < chi2.ppf(0.9995, cells - 1))


@pytest.mark.parametrize("k", [0, 1, 4, 12])
def test_pixels_of_random_directions_are_those_of_healpix(k, generator):
    q = rot.random_quat((20_000,), generator=generator, dtype=torch.float64)
    z, x, y = rot.rotate(q, torch.tensor([1.0, 0.0, 0.0]).double()).unbind(-1)
    assert np.array_equal(grid.grid_cell_of(q, k) % (12 * 4**k), healpy.vec2pix(2**k, x, y, z))


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_grid_is_the_one_ipdf_evaluates_on(k):
    polar, azimuth = healpy.pix2ang(2**k, np.arange(12 * 4**k))
    tilts = np.linspace(0, 2 * np.pi, 6 * 2**k, endpoint=False)
    angles = np.stack([np.tile(azimuth, len(tilts)), np.tile(polar, len(tilts)), np.repeat(tilts, len(polar))], -1)
    theirs = torch.tensor(Rotation.from_euler("XZX", angles).as_quat())
    ours = grid.so3_grid(k)
    assert ours.shape == (grid.grid_size(k), 4)
    assert rot.geodesic_angle(ours, theirs).max() < 1e-12
    assert torch.equal(ours, rot.canonical(ours))


@pytest.mark.parametrize("k", [0, 1, 3, 6, 12])
def test_every_grid_rotation_lies_in_its_own_cell_whatever_its_sign(k, generator):
    index = torch.arange(72 * 8**k) if k <= 3 else torch.randint(grid.grid_size(k), (10_000,), generator=generator)
    q = grid.grid_points(index, k)
    for same in (q, -q, q.float() if k <= 3 else q, grid.random_in_cell(index, k, generator=generator)):
        assert torch.equal(grid.grid_cell_of(same, k), index)


@pytest.mark.parametrize("k", [0, 1])
def test_draws_within_cells_are_uniform_there(k, generator):
    index = torch.randint(grid.grid_size(k), (100_000,), generator=generator)
    q = grid.random_in_cell(index, k, generator=generator)
    assert is_uniform(grid.grid_cell_of(q, k + 1), grid.grid_size(k + 1))
    finer = grid.grid_cell_of(rot.multiply(q, rot.random_quat(generator=generator, dtype=torch.float64)), k + 1)
    assert is_uniform(finer, grid.grid_size(k + 1))


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_cells_take_any_batch_shape(shape):
    q = rot.random_quat(shape, generator=torch.Generator().manual_seed(0))
    index = grid.grid_cell_of(q, 2)
    assert index.shape == shape
    assert grid.grid_points(index, 2).shape == (*shape, 4)
    assert grid.random_in_cell(index, 2).shape == (*shape, 4)


@pytest.mark.parametrize(("k", "radius"), [(0, 60), (1, 33), (2, 17), (5, 2.2)])
def test_no_rotation_is_far_from_the_centre_of_its_cell_not_even_at_poles_and_seams(k, radius, generator):
    eighths = torch.linspace(-2 * math.pi, 2 * math.pi, 33, dtype=torch.float64)
    polar = torch.tensor([0.0, 1e-9, math.acos(2 / 3), math.pi / 2, math.pi - 1e-9, math.pi], dtype=torch.float64)
    seams = rot.euler_to_quat(torch.cartesian_prod(eighths, polar, eighths), "XZX")
    q = torch.cat((seams, rot.random_quat((50_000,), generator=generator, dtype=torch.float64)))
    index = grid.grid_cell_of(q, k)
    assert ((index >= 0) & (index < grid.grid_size(k))).all()
    assert torch.equal(index, grid.grid_cell_of(-q, k))
    assert math.degrees(rot.geodesic_angle(grid.grid_points(index, k), q).max()) < radius


def test_sizes_and_volumes_multiply_to_pi_squared():
    assert [grid.grid_size(k) for k in (0, 2, 5)] == [72, 4608, 2_359_296]
    assert grid.grid_size(3) * grid.cell_volume(3) == pytest.approx(math.pi**2, rel=1e-15)
    # the largest likelihood of a density that is constant on cells, as the field quotes it for IPDF
    assert -math.log(grid.cell_volume(5)) == pytest.approx(12.38, abs=0.005)


def test_chunks_are_the_grid_in_order_and_the_finest_grid_needs_no_memory():
    chunks = list(grid.so3_grid_chunks(2, chunk=1000, dtype=torch.float32))
    assert [len(c) for c in chunks] == [1000] * 4 + [608]
    assert torch.equal(torch.cat(chunks), grid.so3_grid(2, dtype=torch.float32))
    first = next(iter(grid.so3_grid_chunks(12, chunk=7)))
    assert torch.equal(first, grid.grid_points(torch.arange(7), 12))
