"""Charts, legal bins and cell volumes."""

import math

import pytest
import torch
from tables import legal_cells

from aquamam.geometry.cells import CHARTS, HEMISPHERE, Cells
from aquamam.geometry.rotations import canonical, random_quat

BOTH = pytest.mark.parametrize("chart", ["hemisphere", "atlas"])
DENSITIES = pytest.mark.parametrize("density", ["cells", "paper"])
VOLUMES = {"hemisphere": 4 * math.pi / 3, "atlas": 1.9224078653757}  # the atlas's by quadrature at many N


@BOTH
def test_split_and_join_are_inverse(chart, generator):
    chart = CHARTS[chart]
    q = random_quat((2000,), generator=generator, dtype=torch.float64)
    for sign in (1, -1):
        index, u, dropped = chart.split(sign * q)
        assert torch.allclose(chart.join(index, u), q, atol=1e-12)
        assert torch.allclose(u.square().sum(-1) + dropped.square(), torch.ones(2000, dtype=torch.float64))
        assert chart.contains(u * (1 - 1e-12)).all()
        assert u.abs().max() <= chart.half_width + 1e-12
    assert chart.split(q[:0]).u.shape == (0, 3)
    assert chart.split(torch.tensor([0.0, 0, 0, 1])).dropped == 1


@BOTH
def test_dropped_component_is_the_inverse_jacobian(chart, generator):
    """sqrt(det(J^T J)) of u -> q, by autograd, is 1 / q_m."""
    chart = CHARTS[chart]
    for q in random_quat((40,), generator=generator, dtype=torch.float64):
        index, u, dropped = chart.split(q)
        jacobian = torch.autograd.functional.jacobian(lambda v, index=index: chart.join(index, v), u)
        assert torch.isclose(torch.linalg.det(jacobian.T @ jacobian).sqrt(), 1 / dropped, rtol=1e-8)


@BOTH
@pytest.mark.parametrize("bins", [1, 2, 3, 8, 21])
def test_legal_bins_are_those_whose_inner_corner_lies_in_the_domain(chart, bins):
    cells = Cells(chart, bins)
    everything = torch.stack(torch.meshgrid(*[torch.arange(bins)] * 3, indexing="ij"), -1).reshape(-1, 3)
    corner = cells.inner(everything).double() * (cells.chart.half_width / bins)
    size = corner.square().sum(-1) + cells.chart.peak * corner.square().amax(-1)
    expected = everything[size < 1 - 1e-9]
    assert torch.equal(legal_cells(cells), expected)


@BOTH
@pytest.mark.parametrize("bins", [1, 2, 3, 24, 51])
def test_cell_volumes_fill_the_domain(chart, bins):
    cells = Cells(chart, bins)
    assert cells.log_volume(legal_cells(cells)).exp().sum().item() == pytest.approx(VOLUMES[chart], rel=1e-7)


def brute_volume(cells: Cells, cell: torch.Tensor, points: int = 400) -> float:
    """Midpoint rule over the part of the cell that the domain can reach, the last axis in closed form."""
    unit = cells.chart.half_width / cells.bins
    low = cells.inner(cell).double() * unit
    high = cells.outer(cell).double() * unit
    for i in range(3):
        high[i] = min(high[i], cells.chart.room(low[[j for j in range(3) if j != i]]))
    grid = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    x = low[0] + (high[0] - low[0]) * grid[:, None]
    y = low[1] + (high[1] - low[1]) * grid[None]
    top = cells.chart.room(torch.stack(torch.broadcast_tensors(x, y), -1))
    z = (torch.minimum(top, high[2]) - low[2]).clamp_min(0)
    return (z.mean() * (high[0] - low[0]) * (high[1] - low[1]) * 2 ** (2 * cell + 1 == cells.bins).sum()).item()


@BOTH
@pytest.mark.parametrize("bins", [24, 101, 500])
def test_cut_cells_and_slivers_have_their_volume_to_a_thousandth(chart, bins):
    cells = Cells(chart, bins)
    generator = torch.Generator().manual_seed(bins)
    q = random_quat((200_000,), generator=generator, dtype=torch.float64)
    found = cells.locate(cells.chart.split(q)).unique(dim=0)
    found = found[cells.is_cut(found)]
    # the outermost legal third bins: where slivers live
    last = torch.cat([found[:, :2], cells.first_legal(found[:, :2])[:, None]], -1)
    cut = torch.cat([found, last])
    cut = cut[cells.is_cut(cut)]
    volume = cells.log_volume(cut).exp()
    thin = volume.argsort()[:30]
    some = torch.randperm(len(cut), generator=generator)[:30]
    ties = torch.nonzero((cut[:, 0] == cut[:, 1]) | (cut[:, 1] == cut[:, 2])).flatten()[:30]
    assert volume[thin].min() < 1e-3 * cells.width**3  # there are slivers among them
    for i in torch.cat([thin, some, ties]):
        assert volume[i].item() == pytest.approx(brute_volume(cells, cut[i]), rel=1e-3)


@BOTH
@pytest.mark.parametrize("bins", [24, 101])
def test_uniform_points_lie_in_their_cell_and_spread_evenly(chart, bins, generator):
    cells = Cells(chart, bins)
    everything = legal_cells(cells)
    everything = everything[torch.randperm(len(everything), generator=generator)[:3000]]
    u = cells.uniform(everything, generator)
    unit = cells.chart.half_width / bins
    assert cells.chart.contains(u).all()
    assert ((u - cells.centre(everything)).abs() <= unit * (1 + 1e-9)).all()
    # of one cut cell: the mean of many points is the centroid by brute force
    cut = everything[cells.is_cut(everything)][0]
    many = cells.uniform(cut.expand(40_000, 3), generator)
    low = cells.centre(cut) - unit
    grid = torch.rand((400_000, 3), generator=generator, dtype=torch.float64) * 2 * unit + low
    inside = grid[cells.chart.contains(grid)]
    tolerance = 4 * inside.std(0) * (1 / 40_000 + 1 / len(inside)) ** 0.5
    assert ((many.mean(0) - inside.mean(0)).abs() < tolerance).all()


@BOTH
@pytest.mark.parametrize("bins", [5, 20, 500])
@DENSITIES
def test_representatives_and_located_cells_agree(chart, bins, density, generator):
    cells = Cells(chart, bins, density)
    q = random_quat((2000,), generator=generator, dtype=torch.float64)
    point = cells.chart.split(q)
    cell = cells.locate(point)
    unit = cells.chart.half_width / bins
    assert ((point.u - cells.centre(cell)).abs() <= unit * (1 + 1e-9)).all()
    if density == "cells":
        centre = cells.representative(cell)
        assert cells.chart.contains(centre).all()
        assert ((centre - cells.centre(cell)).abs() <= unit * (1 + 1e-9)).all()


EDGES = [
    *([1.0, 0, 0, 0], [-1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, -1.0, 0], [0, 0, 0, 1.0], [0, 0, 0, -1.0]),
    *([0.6, 0.8, 0, 0], [-0.6, -0.8, 0, 0], [0.6, 0, -0.8, -0.0], [-0.0, -0.0, -0.0, 1.0], [0.28, 0.96, 0, 0]),
    *([0.5, 0.5, 0.5, 0.5], [-0.5, 0.5, -0.5, 0.5], [2**-0.5, 2**-0.5, 0, 0], [2**-0.5, 0, 0, -(2**-0.5)]),
    *([1e-310, 0, 0, 1.0], [1.0, 1e-310, -1e-310, 0], [3**-0.5, 3**-0.5, 3**-0.5, 0], [1 - 1e-9, 0, 0, 2e-9**0.5]),
]


@BOTH
@pytest.mark.parametrize("bins", [1, 2, 5, 20, 500, 50257])
@DENSITIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_and_corners_of_the_domain_are_finite_and_legal(chart, bins, density, dtype):
    cells = Cells(chart, bins, density)
    q = torch.tensor(EDGES, dtype=torch.float64).to(dtype).double()
    point = cells.chart.split(canonical(q))
    cell = cells.locate(point)
    for c in range(3):
        assert cells.legal(cell[:, :c])[torch.arange(len(q)), cell[:, c]].all()
    factor = cells.log_factor(point, cell)
    assert factor.isfinite().all()
    other = cells.chart.split(canonical(-q))
    assert torch.equal(cells.log_factor(other, cells.locate(other)), factor)


def test_a_value_on_an_edge_belongs_to_the_bin_below_it_in_the_papers_density():
    paper, ours = Cells("hemisphere", 4, "paper"), Cells("hemisphere", 4, "cells")
    q = torch.tensor([[0.5, -0.5, 0.5, 0.5], [-0.5, 0.5, 0.0, 0.5**0.5]], dtype=torch.float64)
    assert paper.locate(HEMISPHERE.split(q)).tolist() == [[2, 0, 2], [0, 2, 1]]
    assert ours.locate(HEMISPHERE.split(q)).tolist() == [[2, 1, 2], [1, 2, 1]]


def test_papers_factor_is_equation_6(generator):
    """N q_w / (2 w_y w_z) with widths cut at the exact remaining radius."""
    cells = Cells("hemisphere", 20, "paper")
    q = random_quat((500,), generator=generator, dtype=torch.float64)
    point = cells.chart.split(q)
    expected = []
    for x, y, z, w in q.tolist():
        widths = []
        for value, room in ((y, math.sqrt(1 - x * x)), (z, math.sqrt(1 - x * x - y * y))):
            inner = math.floor(abs(value) * 10) / 10
            widths.append(min(room, inner + 0.1) - inner)
        expected.append(math.log(20 * w / (2 * widths[0] * widths[1])))
    found = cells.log_factor(point, cells.locate(point))
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-9)


def test_restricted_logits_are_masked_and_count_volume_if_asked(generator):
    prefix = torch.tensor([[3, 9], [7, 7]])
    logits = torch.randn(2, 15, generator=generator)
    plain, by_volume = (Cells("atlas", 15, by_volume=b) for b in (False, True))
    legal = plain.legal(prefix)
    assert torch.equal(plain.restrict(logits, prefix), logits.masked_fill(~legal, -torch.inf))
    assert torch.equal(by_volume.restrict(logits, prefix).isfinite(), legal)
    extra = by_volume.restrict(logits, prefix)[legal] - logits[legal]
    assert torch.allclose(extra, by_volume.log_share(prefix)[legal], atol=1e-6)
