"""Rotations that give one picture are classes, and a posterior that knows them gives all of a class equal shares and loses nothing."""

import pytest
import torch
from refusals import refused
from tables import table_posterior

from aquamam.errors import InputError
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import canonical, geodesic_angle, multiply, random_quat, rotvec_to_quat
from aquamam.posterior.calibration import ViewClasses
from aquamam.posterior.distribution import EqualViews
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.shape.lookalikes import Lookalikes

SETTINGS = RenderSettings()


@pytest.fixture(scope="module")
def die() -> ViewClasses:
    known = Lookalikes.of(solid("die").mesh, shape=solid("die").shape)
    assert known is not None
    found = known.view_classes(SETTINGS.distance)
    assert found is not None
    return found


def views(count: int, seed: int = 0) -> torch.Tensor:
    """Of the die, most of them nearly along an axis, where one or two faces show."""
    generator = torch.Generator().manual_seed(seed)
    turns = solid("cube").symmetry.elements
    leaning = rotvec_to_quat(0.25 * torch.randn(count, 3, generator=generator, dtype=torch.float64))
    aligned = multiply(leaning, turns[torch.randint(len(turns), (count,), generator=generator)])
    return torch.cat([aligned, random_quat((count // 4,), generator=generator, dtype=torch.float64)])


def members_of(classes: ViewClasses, q: torch.Tensor) -> list[torch.Tensor]:
    return [canonical(multiply(one, classes.elements[which])) for one, which in zip(q, classes.members(q))]


def test_classes_divide_all_rotations(die):
    q = views(300)
    classes = members_of(die, q)
    assert {len(c) for c in classes} == {1, 2, 4}
    for one, mine in zip(q, classes):
        assert float(geodesic_angle(mine, one).min()) < 1e-6
        for theirs in members_of(die, mine):
            assert len(theirs) == len(mine)
            assert float(geodesic_angle(theirs[:, None], mine).amin(0).max()) < 1e-6


def test_classes_are_those_of_the_labels(die):
    q = views(300, seed=1)
    known = Lookalikes.of(solid("die").mesh, shape=solid("die").shape)
    assert known is not None
    assert (die.members(q).sum(-1).numpy() == [len(c) for c in known.equivalents(q.numpy(), SETTINGS.distance)]).all()


def test_no_probability_is_lost_and_shares_are_equal(die):
    """On each class, with the plain posterior beside it."""
    plain = table_posterior(Cells("atlas", 12), batch=3, scale=2.0)
    even = EqualViews(plain, die)
    q = views(40)
    for one, members in zip(q, members_of(die, q)):
        before, after = plain.log_prob(members[:, None]).exp(), even.log_prob(members[:, None]).exp()
        torch.testing.assert_close(after, before.mean(0).expand_as(before))
        torch.testing.assert_close(even.log_prob(one).exp(), after[0])


def test_draws_of_a_class_are_even(die, generator):
    five = torch.tensor([0.02, 0.03, 0.01, 1.0], dtype=torch.float64)  # the camera looks along z at the five
    members = members_of(die, five[None] / five.norm())[0]
    assert len(members) == 4
    near = geodesic_angle(die.draw(members[:1].expand(8000, 4), generator)[:, None], members) < 1e-6
    shares = near.double().mean(0)
    assert bool(((shares > 0.23) & (shares < 0.27)).all())


def test_files_keep_them(die):
    again = ViewClasses.from_dict(die.to_dict())
    q = views(100, seed=5)
    assert torch.equal(again.members(q), die.members(q))
    refused("turns, planes, changed", ViewClasses.from_dict, {"turns": [[0, 0, 0, 1]]})
    with pytest.raises(InputError, match="a mark for each"):
        ViewClasses.from_dict({**die.to_dict(), "planes": die.planes.tolist()[:-1]})


def test_a_continuous_axis_has_too_many():
    known = Lookalikes.of(solid("cylO").mesh, shape=solid("cylO").shape)
    assert known is not None
    assert known.view_classes(SETTINGS.distance) is None
