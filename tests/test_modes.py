"""Separate modes of posteriors whose modes are known."""

import math

import numpy as np
import pytest
import torch
from binghams import bingham_posterior, cylinder, four_fives, turns
from tables import table_posterior

from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import geodesic_angle, multiply, random_quat, rotvec_to_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.answers import Folded, answers
from aquamam.posterior.modes import angles_deg, cluster, describe


def find_modes(posterior, samples=1000, **options):
    return [answer.modes for answer in answers(posterior, samples, **options)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_four_equal_answers_are_four_modes_of_a_quarter_each():
    (modes,) = find_modes(four_fives(), generator=seeded())
    assert [mode.kind for mode in modes] == ["point"] * 4
    assert all(abs(mode.share - 0.25) < 0.06 for mode in modes)
    assert abs(sum(mode.share for mode in modes) - 1) < 0.01
    found = torch.tensor([mode.quaternion for mode in modes])
    nearest = angles_deg(turns(4), found).min(1).values
    assert float(nearest.max()) < 1  # degrees: each true answer is found


@pytest.mark.parametrize("seed", range(3))
def test_a_continuous_symmetry_is_one_curve_an_axis(seed):
    cone = bingham_posterior(random_quat((1,), generator=seeded(seed)), [(2.0, 2.0, 0.0)])
    (one,) = find_modes(cone, generator=seeded(seed))
    (two,) = find_modes(cylinder(), generator=seeded(seed))
    assert [mode.kind for mode in one] == ["curve"]
    assert one[0].share > 0.98
    assert [mode.kind for mode in two] == ["curve", "curve"]
    assert "continuous symmetry" in describe(one)
    curve = multiply(turns(2, (1.0, 0.0, 0.0))[:, None], turns(720)[None]).reshape(-1, 4)
    for mode in two:  # the point lies on the curve that it stands for
        assert float(angles_deg(torch.tensor([mode.quaternion]), curve).min()) < 2


def test_sixty_modes_of_an_icosahedron_are_all_found():
    group = SymmetryGroup.icosahedral().equivalents(random_quat((), generator=seeded(1)))
    posterior = bingham_posterior(group, [2.0] * 60)
    (modes,) = find_modes(posterior, 2000, generator=seeded())
    assert len(modes) == 60
    assert max(mode.share for mode in modes) < 0.035


SAME = random_quat((1,), generator=seeded(2)).expand(2, 4)
FLAT = (0.0, 0.0, 0.0)  # of a Bingham distribution: uniform
SHARES = {  # centres, widths and weights of a mixture; shares of its modes, and what is said of them
    "an unequal answer keeps its share": (turns(2), [1.0, 3.0], [0.9, 0.1], [0.9, 0.1], "ambiguous"),
    "a sharp mode is found beside a broad one": (turns(2), [1.0, 15.0], [0.5, 0.5], [0.5, 0.5], "ambiguous"),
    "tails are not a mode of their own": (SAME, [1.0, 8.0], [0.85, 0.15], [1.0], "one rotation"),
    "what is spread widely is missing": (turns(2), [1.0, FLAT], [0.7, 0.3], [0.7], "spread elsewhere"),
    "a speck hides not that nothing is known": (turns(2), [1.0, FLAT], [0.08, 0.92], None, "undecided"),
}


@pytest.mark.parametrize("law", SHARES)
def test_shares_of_modes_are_those_of_the_mixture(law):
    centres, widths, weights, shares, words = SHARES[law]
    (modes,) = find_modes(bingham_posterior(centres, widths, weights), generator=seeded())
    assert words in describe(modes)
    if shares is None:
        assert "region" in {mode.kind for mode in modes}
    else:
        assert [mode.share for mode in modes] == pytest.approx(shares, abs=0.06)
        assert "curve" not in {mode.kind for mode in modes}
        assert sorted(mode.radius_deg > 20 for mode in modes) == sorted(width == 15.0 for width in widths[: len(modes)])


@pytest.mark.parametrize("samples", [256, 1000])
def test_the_uniform_distribution_is_one_region(samples):
    (modes,) = find_modes(bingham_posterior(turns(1), [(0.0, 0.0, 0.0)]), samples, generator=seeded())
    assert [mode.kind for mode in modes] == ["region"]
    assert describe(modes).startswith("undecided")


def test_modes_turn_with_the_posterior_whatever_the_signs_of_its_samples():
    turn = random_quat((), generator=seeded(3))
    q = four_fives().sample((600,), generator=seeded())[:, 0].double()
    flipped = q * torch.where(torch.arange(600) % 2 == 0, 1.0, -1.0)[:, None]
    still, turned = cluster(flipped), cluster(multiply(turn, q))
    assert np.array_equal(still.labels, turned.labels)
    for a, b in zip(still.modes, turned.modes):
        moved = multiply(turn, torch.tensor(a.quaternion, dtype=torch.float64))
        assert float(geodesic_angle(moved, torch.tensor(b.quaternion, dtype=torch.float64))) < 1e-6


def test_answers_hold_what_a_person_asks_for():
    (answer,) = answers(four_fives(), generator=seeded())
    assert answer.to_dict()["ambiguous"]
    assert answer.words.startswith("ambiguous: 4 separate rotations")
    assert answer.shares[5] <= answer.shares[15] <= answer.shares[30]
    assert abs(answer.shares[30] - 0.25) < 0.06  # of four equal answers it gives one
    (answer,) = answers(bingham_posterior(turns(1), [1.0]), generator=seeded())
    assert not answer.to_dict()["ambiguous"]
    assert answer.words.startswith("clear")
    assert answer.shares[5] > 0.98


def test_answers_come_for_each_image_of_any_model():
    posterior = table_posterior(Cells("atlas", 40), batch=3, scale=3.0)
    found = answers(posterior, 64, strategy="beam", generator=seeded())
    assert len(found) == 3
    for i, answer in enumerate(found):
        alone = posterior.log_prob(torch.tensor(answer.quaternion, dtype=torch.float64).expand(3, 4))[i]
        assert math.isclose(answer.log_density, float(alone), abs_tol=1e-3)


def test_answers_up_to_symmetry_take_what_looks_alike_for_one():
    """A posterior with a mode at each of the 24 rotations of a cube."""
    group = SymmetryGroup.octahedral()
    truth = random_quat((1,), generator=torch.Generator().manual_seed(1), dtype=torch.float64)[0]
    turn = torch.randn(2400, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * math.radians(2)
    q = multiply(multiply(rotvec_to_quat(turn), truth), group.elements.repeat(100, 1))
    assert len(cluster(q).modes) == 24
    folded = Folded.of(q, truth, group)
    assert len(folded.modes) == 1
    assert folded.shares[15] == 1
    assert folded.words.startswith("clear: one rotation (100 %)")
    assert folded.words.endswith("up to the 24 rotations that look the same")
    assert group.distance(torch.tensor(folded.modes[0].quaternion, dtype=torch.float64), truth) < math.radians(1)
    two = torch.cat([q, multiply(rotvec_to_quat(torch.tensor([0.0, 0.0, 0.6], dtype=torch.float64)), q)])
    assert len(Folded.of(two, truth, group).modes) == 2


def test_a_continuous_symmetry_folds_to_a_point():
    group = SymmetryGroup.revolution(flip=True)
    u = torch.rand(800, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    truth = torch.tensor([0.3, 0.1, -0.2, 0.9], dtype=torch.float64)
    truth = truth / truth.norm()
    folded = Folded.of(multiply(truth, group.element(u)), truth, group)
    assert folded.shares[5] == 1
    assert not folded.to_dict()["ambiguous"]
    assert folded.to_dict()["order"] is None
    assert folded.words.endswith("up to the continuous symmetry")
