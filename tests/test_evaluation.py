"""An evaluation tells the truth about models whose truth is known, on one process and on two."""

import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from networks import tiny_config, tiny_model
from PIL import Image
from processes import torchrun
from refusals import refused
from synthetic import KnownMixture, Listed, numbers
from tables import table_posterior

from aquamam.baselines.classification import CellProbabilities
from aquamam.checkpoints.checkpoint import load, save_model
from aquamam.cli.evaluate import rendered
from aquamam.data.photos import PhotoDataset
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation import metrics
from aquamam.evaluation.evaluate import evaluate
from aquamam.evaluation.results import Figures
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import LOG_UNIFORM, geodesic_angle, multiply, random_quat, rotvec_to_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.model import AQuaMaM, RotationModel
from aquamam.pages.evaluation import evaluation_page
from aquamam.posterior.distribution import RotationDistribution, least_expected_error
from aquamam.rendering.solids import solid

SIDE = 8
TINY = tiny_config(image_size=SIDE, stem=(8,), stem_blocks=(0,))


class Model(RotationModel):
    """A function from the examples' numbers to a posterior, as a model."""

    kind = "test"

    def __init__(self, of):
        super().__init__()
        self.of, self.config = of, SimpleNamespace(image_size=SIDE)

    def forward(self, images):
        return self.of(numbers(images))


class Around(RotationDistribution):
    """Equivalents of a centre, off by up to `angle`; a density that falls with the angle to the nearest one."""

    def __init__(self, centre, group, angle=0.3):
        super().__init__(len(centre))
        self.centre, self.group, self.angle = centre, group, angle

    def _log_prob(self, q):
        return LOG_UNIFORM - self.group.distance(self.centre.expand(q.shape), q)

    def _sample(self, count, generator):
        u = torch.rand(count, len(self.centre), 2, generator=generator, dtype=torch.float64)
        return multiply(self.turned(generator, count), self.group.element(u))

    def turned(self, generator, count):
        axis = torch.randn(count, len(self.centre), 3, generator=generator, dtype=torch.float64)
        size = torch.rand(count, len(self.centre), 1, generator=generator, dtype=torch.float64) * self.angle
        return multiply(self.centre, rotvec_to_quat(axis / axis.norm(dim=-1, keepdim=True) * size))

    def _mode(self):
        return multiply(self.centre, self.group.element(torch.full((len(self.centre), 2), 0.6, dtype=torch.float64)))


def table(scale=1.0, count=1):
    return table_posterior(Cells("atlas", 16), batch=1, scale=scale).expand((count,))


def table_model(scale=1.0):
    """One table for all images."""
    return Model(lambda numbers: table(scale, len(numbers)))


@pytest.fixture(scope="module")
def drawn():
    """Truths that are draws from the table's posterior at scale 1."""
    return Listed(table().sample((700,), generator=torch.Generator().manual_seed(1)))


def test_truths_from_the_model_itself_are_calibrated_and_as_likely_as_its_entropy_says(drawn):
    evaluation = evaluate(table_model(), drawn, samples=50, quiet=True)
    figures = evaluation.figures
    assert figures.pit_p > 0.001
    assert evaluation.verdict == "no miscalibration seen"
    for level in (50, 90, 95):
        sigma = math.sqrt(level * (100 - level) / 700) / 100
        assert abs(getattr(figures, f"coverage{level}") - level / 100) < 4 * sigma
    entropy, error = table().entropy(20_000, generator=torch.Generator().manual_seed(2))
    assert abs(figures.mean_log_likelihood + float(entropy)) < 4 * math.hypot(figures.log_likelihood_se, float(error))
    assert evaluation.ceiling == pytest.approx(Cells("atlas", 16).ceiling)
    assert list(evaluation.strategies) == ["greedy", "beam", "expected"]


@pytest.mark.parametrize(("scale", "verdict"), [(2.0, "too sure"), (0.3, "not sure enough")])
def test_a_model_that_is_too_sharp_or_too_flat_is_told_so(drawn, scale, verdict):
    evaluation = evaluate(table_model(scale), drawn, samples=50, strategies=["greedy"], quiet=True)
    assert evaluation.verdict == verdict
    assert (evaluation.figures.coverage90 < 0.87) == (verdict == "too sure")


def test_classes_have_figures_of_their_own_that_count_alike_in_their_mean(drawn):
    data = Listed(drawn.truths[:101], classes=("one", "three"))
    evaluation = evaluate(table_model(), data, samples=5, strategies=["expected"], quiet=True)
    log_p, errors = (evaluation.columns[name] for name in ("log_likelihood", "error.expected"))
    for k, name in enumerate(("one", "three")):
        found = evaluation.classes[name]
        assert found.mean_log_likelihood == pytest.approx(float(log_p[k::2].mean()))
        assert found.mean_error_deg == pytest.approx(math.degrees(errors[k::2].mean()))
    both = [evaluation.classes[name].median_error_deg for name in ("one", "three")]
    assert evaluation.class_mean.median_error_deg == pytest.approx(sum(both) / 2)
    assert evaluation.class_mean.images == 101


GROUPS = {"C4": SymmetryGroup.cyclic(4), "cylinder": SymmetryGroup.revolution(flip=True)}
EVERY_GROUP = {**GROUPS, "trivial": SymmetryGroup.trivial(), "cube": SymmetryGroup.octahedral()}


@pytest.mark.parametrize("group", EVERY_GROUP.values(), ids=EVERY_GROUP.keys())
def test_errors_are_to_the_nearest_equivalent_listed_or_of_a_group(group, generator):
    truth, q = (random_quat((30,), generator=generator, dtype=torch.float64) for _ in range(2))
    equivalent = multiply(truth, group.element(torch.rand(30, 2, generator=generator)))
    assert metrics.rotation_error(equivalent, truth[:, None], group).max() < 1e-6
    assert torch.allclose(metrics.rotation_error(equivalent, truth[:, None]), geodesic_angle(equivalent, truth))
    if group.order > 1:
        assert metrics.rotation_error(equivalent, truth[:, None]).max() > 0.1
    if group.axis is None:
        listed = group.equivalents(truth)
        by_list = metrics.rotation_error(q, listed)
        assert torch.allclose(by_list, metrics.rotation_error(q, truth[:, None], group))
        assert torch.equal(by_list, metrics.rotation_error(q, torch.cat([listed, listed[:, :1]], 1)))


def test_likelihood_is_averaged_over_equivalents_before_images():
    log_p = torch.tensor([[1.0, 4.0], [3.0, -math.inf], [5.0, 9.0]])
    assert metrics.image_log_likelihood(log_p, torch.tensor([3, 1])).tolist() == [3.0, 4.0]
    assert metrics.image_log_likelihood(torch.zeros(3, 0), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_least_expected_error_is_the_best_of_the_samples(generator):
    samples = table_posterior(Cells("atlas", 12), scale=2.0, batch=3).sample((40,), generator=generator)
    best = least_expected_error(samples)
    expected = geodesic_angle(samples[:, None], samples[None]).mean(0)  # (samples, images)
    assert torch.allclose(geodesic_angle(samples, best).mean(0), expected.amin(0), atol=2e-3)
    assert least_expected_error(samples[:, 0]).shape == (4,)
    assert least_expected_error(samples[:, :0]).shape == (0, 4)


@pytest.mark.parametrize("listed", [False, True], ids=["group", "list"])
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
def test_equivalent_predictions_have_no_error_and_symmetric_labels_need_not_be_drawn_evenly(group, listed):
    generator = torch.Generator().manual_seed(0)
    centre = random_quat((300,), generator=generator, dtype=torch.float64)
    truths = Around(centre, group).turned(generator, 1)[0][:, None]  # always the same of the equivalents
    if listed:
        truths = group.equivalents(truths[:, 0], 90)
    data = Listed(truths, group=None if listed else group)
    model = Model(lambda numbers: Around(centre[numbers], group))
    evaluation = evaluate(model, data, samples=40, quiet=True)
    assert list(evaluation.strategies) == ["greedy", "expected"]  # no cells, no beam
    aware, plain = evaluation.strategies["greedy"], evaluation.plain["greedy"]
    assert aware.mean_error_deg < math.degrees(0.3)
    assert plain.mean_error_deg > 60
    assert aware.acc15 > 0.8
    assert evaluation.symmetric
    assert evaluation.symmetries == {"thing": "listed" if listed else "known"}
    assert evaluation.figures.pit_p > 0.001
    assert evaluation.figures.spread_deg < math.degrees(0.45)
    assert evaluation.columns["found"].mean() > 0.5


def test_likelihoods_average_over_a_group_as_over_its_list():
    group = SymmetryGroup.octahedral()
    q = random_quat((20,), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    figures = [
        evaluate(table_model(), data, samples=0, quiet=True).figures.mean_log_likelihood
        for data in (Listed(q[:, None], group=group), Listed(group.equivalents(q)))
    ]
    assert figures[0] == pytest.approx(figures[1], abs=1e-5)


def test_worst_cases_are_the_worst(drawn):
    evaluation = evaluate(table_model(), drawn, limit=200, samples=10, quiet=True)
    mode = table().mode.double()
    errors = [float(geodesic_angle(torch.from_numpy(drawn.rotations(i))[0], mode)[0]) for i in range(200)]
    assert [case.index for case in evaluation.worst] == np.argsort(errors)[::-1][:12].tolist()
    assert evaluation.worst[0].error_deg == pytest.approx(math.degrees(max(errors)), abs=1e-3)
    log_p = evaluation.columns["log_likelihood"]
    assert [case.index for case in evaluation.unlikely] == log_p.argsort()[:12].tolist()


def test_figures_do_not_depend_on_how_images_are_batched(drawn):
    options = {"limit": 50, "samples": 0, "quiet": True}
    one, other = (evaluate(table_model(), drawn, batch_size=size, **options).figures for size in (50, 7))
    assert asdict(one) == pytest.approx(asdict(other), abs=1e-6, nan_ok=True)
    assert math.isnan(one.pit_ks)


def test_unreadable_images_are_left_out_counted_and_named(drawn):
    data = Listed(drawn.truths[:30], broken=range(3, 14))
    evaluation = evaluate(table_model(), data, samples=5, batch_size=4, quiet=True)  # two batches are empty
    assert evaluation.figures.images == 19
    assert len(evaluation.unreadable) == 11
    assert "image 3 " in evaluation.unreadable[0]
    none = Listed(drawn.truths[:30], broken=range(30))
    refused("none of the 30 images can be read: image 0 ", evaluate, table_model(), none, quiet=True)


def test_ties_of_a_density_that_is_constant_in_cells_stay_ties():
    log_p = torch.full((1, 72), -math.log(72.0))
    model = Model(lambda numbers: CellProbabilities(log_p.expand(len(numbers), 72), 0))
    q = random_quat((400, 1), generator=torch.Generator().manual_seed(0))
    assert evaluate(model, Listed(q), samples=7, strategies=["greedy"], quiet=True).figures.pit_p > 0.001


def test_what_cannot_be_evaluated_gets_one_clear_sentence(drawn):
    toy = tiny_model(embedding="category", tokens=4)
    for rule, options in (
        ("at least 1 image", {"limit": 0}),
        ("negative", {"samples": -1}),
        ("at least 1 image", {"batch_size": 0}),
        ("strategies are greedy", {"strategies": ["guess"]}),
        ("strategies are greedy", {"strategies": []}),
        ("chooses among samples", {"strategies": ["expected"], "samples": 0}),
        ("empty", {"dataset": Listed(torch.zeros(0, 1, 4))}),
        ("reads 8 x 8 images and the data has 16 x 16", {"dataset": KnownMixture(size=16, length=4)}),
        ("never ends", {"dataset": KnownMixture()}),
        ("categories", {"model": toy}),
    ):
        refused(rule, evaluate, **{"model": table_model(), "dataset": drawn, "quiet": True, **options})


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_holds_everything_and_nothing_escapes_from_its_data(drawn):
    data = Listed(drawn.truths[:40], classes=("</script><b>", "other"))
    evaluation = evaluate(table_model(), data, samples=4, quiet=True)
    page = evaluation_page(evaluation, data, {"model": "<i>m", "kind": "test", "parameters": 1, "data": "listed"})
    assert "https:" not in page
    assert page.count("http:") == 1  # the name of SVG, which nothing loads
    assert page.count("</script>") == 2
    assert "&lt;i&gt;m" in page
    facts = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert facts["worst"][0]["image"].startswith("data:image/png;base64,")
    assert "truth_image" not in facts["worst"][0]
    assert facts["worst"][0]["label"] in data.classes


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    trained = RenderedDataset(solid("die"), seed=0).describe()
    return save_model(AQuaMaM(TINY), tmp_path / "tiny.safetensors", {"data": trained})


@pytest.fixture
def folder(tmp_path):
    """23 pictures of noise and a CSV."""
    noise, q = np.random.default_rng(0), random_quat((23,), generator=torch.Generator().manual_seed(0)).tolist()
    root = tmp_path / "data"
    root.mkdir()
    rows = ["image,qx,qy,qz,qw,class"]
    for i, row in enumerate(q):
        Image.fromarray(noise.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(root / f"{i}.png")
        rows.append(f"{i}.png,{','.join(map(str, row))},{'ab'[i % 2]}")
    for split in ("train", "test"):
        (root / f"{split}.csv").write_text("\n".join(rows if split == "test" else rows[:2]) + "\n")
    return root


def figures_of(text):
    facts = json.loads(text.strip().splitlines()[-1])
    return {key: value for key, value in facts.items() if key not in ("seconds", "throughput")}


def test_two_processes_give_the_figures_of_one(checkpoint, folder, prints):
    arguments = ["evaluate", str(checkpoint), "--data", str(folder), "--samples", "20", "--batch-size", "5"]
    arguments += ["--json", "--quiet"]
    alone = figures_of(prints(*arguments))
    together = torchrun("-m", "aquamam", *arguments, "--device", "cpu")
    assert together.stdout.count("mean_log_likelihood") == 4  # one object: the whole, two classes, their mean
    both = figures_of(together.stdout)
    assert alone["images"] == 23
    assert both.keys() == alone.keys()
    for name in Figures.__dataclass_fields__:
        assert both[name] == pytest.approx(alone[name], abs=1e-5), name
    assert [case["index"] for case in both["worst"]] == [case["index"] for case in alone["worst"]]


def test_without_data_it_renders_what_the_model_was_trained_on_anew(checkpoint, tmp_path, prints):
    out = tmp_path / "report"
    text = prints("evaluate", checkpoint, "--count", 6, "--samples", 3, "--quiet", "--out", out)
    assert "6 images: fresh renders of die at 8 px, seed 2147483648" in text
    assert f"volume pi^2: uniform -2.29, ceiling {Cells('atlas', 12).ceiling:.2f}" in text
    facts = json.loads((out / "evaluation.json").read_text())
    named = (name for name in Figures.__dataclass_fields__ if not name.startswith("held"))  # it is not calibrated
    assert all(facts[name] is not None for name in (*named, "ceiling", "seed", "throughput"))
    assert facts["symmetries"] == {"die": "known"}
    assert facts["strategies"]["beam"]["plain"]["acc30"] == facts["strategies"]["beam"]["acc30"]
    page = json.loads((out / "evaluation.html").read_text().split('id="data">')[1].split("</script>")[0])
    assert {"image", "truth_image", "prediction_image"} <= page["worst"][0].keys()


def test_a_model_of_photograph_like_renders_is_judged_on_such(checkpoint):
    model = load(checkpoint)
    model.learn(data={**model.info["data"], "photographs": True})
    assert isinstance(rendered(model, None, 3, 0)[0], PhotoDataset)


def test_held_out_renders_are_not_those_of_training(checkpoint):
    fresh, _ = rendered(load(checkpoint), None, 50, 0)
    for split in ("train", "valid", "test"):
        seen = RenderedDataset(solid("die"), seed=0, split=split)
        mine, theirs = ([data.rotations(i)[0, 0] for i in range(n)] for data, n in ((fresh, 50), (seen, 500)))
        assert not np.isin(mine, theirs).any()


def test_a_model_that_does_not_say_its_object_asks_for_data(tmp_path, refuses):
    for data, sentence in (({}, "does not say"), ({"objects": [{"name": "bracket"}]}, "bracket")):
        file = save_model(AQuaMaM(TINY), tmp_path / "tiny.safetensors", {"data": data})
        assert sentence in refuses("evaluate", file)
