"""Rotations that give one picture: they do, and none is missing; a posterior that knows these classes gives all of a
class equal shares and loses nothing."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from tables import table_posterior

from aquamam.data import RenderedDataset
from aquamam.data.labels import draw_labels
from aquamam.data.random import haar
from aquamam.evaluation.metrics import rotation_error
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import canonical, geodesic_angle, multiply, random_quat, rotvec_to_quat
from aquamam.posterior.calibration import ViewClasses
from aquamam.posterior.distribution import EqualViews
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.shape.lookalikes import Lookalikes

SETTINGS = RenderSettings(size=48)


def of(name: str) -> Lookalikes:
    found = Lookalikes.of(solid(name).mesh, shape=solid(name).shape)
    assert found is not None
    return found


def far_pixels(mesh: Mesh, q: np.ndarray) -> np.ndarray:
    """How many pixels of each picture differ visibly from the first."""
    images = render(mesh, q, SETTINGS).astype(int)
    return (np.abs(images - images[0]).max(-1) > 20).sum((1, 2))


@pytest.mark.parametrize("name", ["die", "tetX", "cylO"])
def test_listed_rotations_give_the_same_picture(name):
    q = haar(3, "views", np.arange(300))
    lists = of(name).equivalents(q, SETTINGS.distance)
    many = [one for one in lists if len(one) > solid(name).symmetry.order]
    assert many
    for one in many[:12]:
        assert far_pixels(solid(name).mesh, one[:20]).max() <= 1  # a pixel of the outline may fall to either side


def test_all_turns_that_look_the_same_are_listed():
    """Against renders, for every turn of the cube and views of all kinds."""
    die = of("die")
    along = Rotation.create_group("O")[::3]  # faces towards the camera, some of them leaning by three degrees
    q = np.concatenate(
        [haar(4, "views", np.arange(15)), along.as_quat(), (Rotation.from_rotvec([0.05, 0.02, 0.3]) * along).as_quat()]
    )
    for i, (one, same) in enumerate(zip(q, die.same(q, SETTINGS.distance))):
        other = (Rotation.from_quat(one) * Rotation.from_quat(die.elements)).as_quat()
        seen = far_pixels(solid("die").mesh, other) <= 1
        assert (same <= seen).all()
        if i >= 15:  # one face fills the view; in others a sliver may be too thin for a pixel
            assert same.sum() > 1
            assert (same == seen).all()


def test_shape_is_found_where_it_is_not_known():
    known, found = of("tetX"), Lookalikes.of(solid("tetX").mesh)
    q = haar(5, "views", np.arange(100))
    assert found is not None
    assert [len(a) for a in known.equivalents(q, SETTINGS.distance)] == [
        len(a) for a in found.equivalents(q, SETTINGS.distance)
    ]
    assert Lookalikes.of(solid("icosa").mesh) is None  # no paint
    assert Lookalikes.of(solid("sphereX").mesh, shape=solid("sphereX").shape) is None  # too many to try


def test_dataset_lists_them_and_training_uses_each():
    data = RenderedDataset(solid("die"), SETTINGS, seed=0, lookalikes=True)
    plain = RenderedDataset(solid("die"), SETTINGS, seed=0)
    counts = data.batch(range(400)).counts
    assert set(counts.tolist()) == {1, 2, 4}
    four = counts.tolist().index(4)
    batch = data.batch([four, counts.tolist().index(1)])
    assert torch.equal(batch.images, plain.batch(batch.indices).images)
    assert torch.allclose(batch.rotations[:, :1], plain.batch(batch.indices).rotations)
    assert np.array_equal(data.rotations(four), batch.rotations[0].numpy())
    q, weights = draw_labels(batch, data, 4, seed=0, positions=np.arange(2))
    assert weights.sum(0).tolist() == [1.0, 1.0]
    assert {tuple(row) for row in q[:, 0].tolist()} == {tuple(row) for row in batch.rotations[0].tolist()}
    assert (q[:, 1] == batch.rotations[1, 0]).all()
    truths = torch.from_numpy(data.rotations(four))  # errors are to the nearest rotation that gives the picture
    assert rotation_error(truths, truths, data.symmetry("die")).max() < 1e-6
    assert rotation_error(truths[1], truths[:1], data.symmetry("die")) > 1


def test_groups_hold_beside_lists():
    """In one batch a cone, whose group is known, and a die, whose equivalents are listed."""
    data = RenderedDataset([solid("cone"), solid("die")], SETTINGS, seed=0, lookalikes=True)
    batch = data.batch(range(200))
    assert batch.rotations.shape[1] > 1
    q, _ = draw_labels(batch, data, 3, seed=0, positions=np.arange(200))
    group = solid("cone").symmetry
    turned = (q[:, ::2] - batch.rotations[::2, 0]).abs().amax(-1)
    assert (turned > 1e-3).float().mean() > 0.9
    assert group.distance(q[:, ::2], batch.rotations[::2, 0]).max() < 1e-6


@pytest.fixture(scope="module")
def die() -> ViewClasses:
    found = of("die").view_classes(SETTINGS.distance)
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
    listed = of("die").equivalents(q.numpy(), SETTINGS.distance)
    assert (die.members(q).sum(-1).numpy() == [len(one) for one in listed]).all()


def test_no_probability_is_lost_and_shares_are_equal(die):
    """On each class, with the plain posterior beside it."""
    plain = table_posterior(Cells("atlas", 12), batch=3, scale=2.0)
    even = EqualViews(plain, die)
    q = views(40)
    for one, members in zip(q, members_of(die, q)):
        before, after = plain.log_prob(members[:, None]).exp(), even.log_prob(members[:, None]).exp()
        torch.testing.assert_close(after, before.mean(0).expand_as(before))
        torch.testing.assert_close(even.log_prob(one).exp(), after[0])


def test_a_continuous_axis_has_too_many():
    assert of("cylO").view_classes(SETTINGS.distance) is None
