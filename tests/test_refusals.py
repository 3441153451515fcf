"""Bad input is refused in one sentence: every rule that needs no file, in one table; what reads files tells its own."""

import math

import numpy as np
import pytest
import torch
from binghams import four_fives
from networks import tiny_config, tiny_model
from PIL import Image
from refusals import refused
from registry import TOY, tiny, top_of_a_tower
from scenes import pose_model
from tables import table_posterior

import aquamam
from aquamam.baselines.ipdf import IPDF, IPDFConfig
from aquamam.checkpoints.checkpoint import build
from aquamam.data.augment import AugmentSettings, augmentation
from aquamam.data.photos import PhotoDataset
from aquamam.geometry import grid
from aquamam.geometry import rotations as rot
from aquamam.geometry.camera import Camera, cut
from aquamam.geometry.cells import Cells
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.poses import part_of
from aquamam.plotting import make_cloud, marginals, mollweide
from aquamam.posterior.answers import answers
from aquamam.posterior.calibration import Calibration, ViewClasses
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.fusion import fuse
from aquamam.posterior.hypotheses import to_detection3d
from aquamam.posterior.maps import within
from aquamam.posterior.regions import find_region
from aquamam.posterior.tracking import Tracker
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, contact_sheet, render
from aquamam.rendering.solids import open_object, solid
from aquamam.serving.app import create_app
from aquamam.serving.gate import Limits
from aquamam.shape.matching import Tolerance
from aquamam.training.calibrate import find_typicality
from aquamam.training.config import TrainConfig

NAN, STILL = math.nan, torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)
HALF = rot.random_quat((1,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BENT = Camera(fx=900.0, fy=900.0, cx=960.0, cy=540.0, distortion=(-0.4, 0.2))
PHOTO, TET = Image.new("RGB", (200, 160)), solid("tet").mesh
make, bop, quat, matrix = SymmetryGroup, SymmetryGroup.from_bop, rot.as_unit_quat, rot.as_rotation_matrix


def table(batch: int = 2) -> RotationDistribution:
    return table_posterior(Cells("atlas", 12), batch=batch)


def triangle(**arrays) -> Mesh:
    return Mesh(**{"vertices": np.eye(3), "faces": np.array([(0, 1, 2)]), **arrays})


def images(*shape: int, value: float = 0.0, dtype: torch.dtype = torch.float32) -> RotationDistribution:
    return tiny("stem")(torch.full(shape, value, dtype=dtype))


def network(**change) -> None:
    tiny_config(**change)


def system(kind: str, **config) -> None:
    build(kind, {**TOY, **config})


def grid_of_ipdf(**options) -> None:
    IPDF(IPDFConfig(**TOY)).posterior(torch.arange(1), **options)


def poses(box=(30, 30, 20, 20), model=None, count: int = 1) -> None:
    aquamam.poses(model or pose_model(), [PHOTO] * count, box, Camera(fx=200.0, fy=200.0, cx=79.5, cy=59.5))


def of_part(part) -> aquamam.AQuaMaM:
    model = pose_model()
    model.learn(part=part)
    return model


RULES = {
    "rotations": [
        ("^truth must .*zero quaternion", lambda: quat(torch.zeros(4), name="truth")),
        ("finite", lambda: quat(torch.full((2, 4), NAN))),
        ("finite", lambda: quat(torch.tensor([0.0, 0.0, 0.0, math.inf]))),
        ("norm 1.01", lambda: quat(torch.tensor([0.0, 0.0, 0.0, 1.01]))),
        ("last axis of 4", lambda: quat(torch.ones(3, 3))),
        ("last axis of 4", lambda: quat(torch.tensor(1.0))),
        ("floating", lambda: quat(torch.tensor([0, 0, 0, 1]))),
        ("array of numbers", lambda: quat("north")),
        ("array of numbers", lambda: quat([[0.0, 0.0, 0.0, 1.0], [1.0]])),
        ("floating", lambda: quat([True, False, False, False])),
        ("^truth must .*reflection", lambda: matrix(torch.diag(torch.tensor([1.0, 1.0, -1.0])), name="truth")),
        ("orthogonal", lambda: matrix(2 * torch.eye(3))),
        ("finite", lambda: matrix(torch.full((3, 3), NAN))),
        ("3 x 3", lambda: matrix(torch.eye(4))),
        ("floating", lambda: matrix(torch.eye(3).long())),
        ("pi2", lambda: rot.convert_log_density(0.0, to="4pi")),
        ("at least one", lambda: rot.chordal_mean(torch.zeros(0, 4))),
        ("3 angles", lambda: rot.euler_to_quat(torch.zeros(2), "xyz")),
        *(("convention", lambda bad=bad: rot.euler_to_quat(torch.zeros(2), bad)) for bad in ("xYz", "xx", "", "xyzx")),
        *(("convention", lambda bad=bad: rot.quat_to_euler(STILL, bad)) for bad in ("xy", "zxz")),
    ],
    "symmetries": [
        ("from 1 to 360", lambda: make.cyclic(0)),
        ("not all zero", lambda: make.cyclic(3, (0, 0, 0))),
        ("three finite", lambda: make.cyclic(3, (0, 1))),
        ("perpendicular", lambda: make.dihedral(3, (0, 0, 1), (0, 1, 1))),
        ("from 1 to 180", lambda: make.dihedral(-1)),
        ("identity", lambda: make(elements=HALF)),
        ("identity", lambda: make(elements=torch.zeros(0, 4).double())),
        ("products", lambda: make(elements=make.cyclic(5).elements[:3])),
        ("twice", lambda: make(elements=make.cyclic(2).elements[[0, 1, 1]])),
        ("sphere", lambda: make.generated(make.cyclic(3, (0, 1, 1)).elements, axis=(1, 0, 0))),
        ("continuous axis", lambda: make.generated(rot.rotvec_to_quat(torch.tensor([[0.0, 0.0, 1.0]]).double()))),
        ("elements", lambda: make.from_dict({})),
        ("three", lambda: make.from_dict({"elements": [[0, 0, 0, 1]], "axis": "z"})),
        ("16 numbers", lambda: bop({"symmetries_discrete": [[1, 0, 0]]})),
        ("axis", lambda: bop({"symmetries_continuous": [[0, 0, 1]]})),
        ("orthogonal", lambda: bop({"symmetries_discrete": [[0] * 16]})),
        ("sphere", lambda: bop({"symmetries_continuous": [{"axis": [0, 0, 1]}, {"axis": [0, 1, 0]}]})),
        ("turns, planes, changed", lambda: ViewClasses.from_dict({"turns": [[0, 0, 0, 1]]})),
        ("a mark for each", lambda: ViewClasses.from_dict({**top_of_a_tower().to_dict(), "planes": [[1.0, 0, 0, 1]]})),
        (r"0\.0001 to 0\.2", lambda: Tolerance(distance=2.0)),
    ],
    "grids and cells": [
        *(("grid level", lambda k=k: grid.grid_size(k)) for k in (-1, 13)),
        ("so3_grid_chunks", lambda: grid.so3_grid(7)),
        ("must be", lambda: Cells("sphere", 5)),
        ("must be", lambda: Cells("atlas", 0)),
        ("must be", lambda: Cells("atlas", 5, "exact")),
        ("by_volume needs density", lambda: Cells("atlas", 15, "paper", by_volume=True)),
    ],
    "posteriors": [
        ("unit norm", lambda: table().log_prob(torch.zeros(2, 4))),
        ("batch", lambda: table().log_prob(torch.eye(4)[:3])),
        ("positive", lambda: table().topk(0)),
        ("at least 2", lambda: table().entropy(1)),
        ("strategy", lambda: table().predict("guess")),
        ("at least one", lambda: table().predict("expected", samples=0)),
        ("negative", lambda: table().sample((-1,))),
        *(("tolerance", lambda t=t: within(table(), t)) for t in (-1e-3, 1.0, NAN)),
        ("between 0 and 1", lambda: find_region(four_fives(), level=1.5)),
        ("20 samples", lambda: find_region(four_fives(), samples=3)),
        ("share of all rotations", lambda: find_region(four_fives(), largest=0.0)),
        ("samples", lambda: answers(four_fives(), 5)),
        *(("one image", lambda draw=draw: draw(table())) for draw in (make_cloud, marginals)),
        ("bins", lambda: marginals(four_fives())),
        ("x, y or z", lambda: mollweide(make_cloud(four_fives(), samples=20), axis="w")),
    ],
    "calibrations": [
        ("must be", lambda: Calibration(temperatures=(1.0, 0.0, 1.0))),
        *(("must be", lambda floor=floor: Calibration(floor=floor)) for floor in (1.0, -0.1)),
        ("calibrate the model again", lambda: Calibration.from_dict({"scores": {"samples": 9}})),
        ("calibrate the model again", lambda: Calibration.from_dict({"floor": "high"})),
        ("some samples", lambda: Calibration.from_dict({"scores": {"samples": 0, "scores": [[0.1]]}})),
        ("one edge less", lambda: Calibration.from_dict({"scores": {"samples": 9, "scores": [[0.1], [0.2]]}})),
    ],
    "fusion": [
        ("one or more", lambda: fuse([])),
        ("relative", lambda: fuse([four_fives()] * 2, torch.zeros(3, 4).double() + STILL)),
        ("unit norm", lambda: fuse([four_fives()] * 2, torch.ones(2, 4))),
        ("weights", lambda: fuse([four_fives()] * 2, weights=[1, -1])),
        ("samples", lambda: fuse([four_fives()], samples=3)),
        ("conflict", lambda: fuse([four_fives()], conflict="maybe")),
        ("batch", lambda: fuse([four_fives().expand((2, 1))])),
        ("batch", lambda: fuse([table(2), table(3)])),
        ("noise", lambda: Tracker(motion_noise_deg=-1)),
        ("lost", lambda: Tracker(lost=0.5)),
        ("samples", lambda: Tracker(samples=3)),
        ("update", lambda: Tracker().belief),
        ("at least one", lambda: aquamam.fuse_poses([])),
        ("noise", lambda: aquamam.PoseTracker(noise_deg=0, noise=1)),
    ],
    "images and models": [
        *(("shape", lambda s=s: images(*s)) for s in ((1, 3, 17, 16), (1, 1, 16, 16), (16, 16))),
        *((r"\[0, 1\]", lambda x=x: images(1, 3, 16, 16, value=x)) for x in (255.0, NAN, math.inf)),
        ("uint8 or floating", lambda: images(1, 3, 16, 16, dtype=torch.int64)),
        ("0 to 5", lambda: tiny("category")(torch.tensor([6]))),
        ("categories", lambda: tiny("category")(torch.zeros(1, 3, 16, 16))),
        *(("must", lambda c=c: network(**c)) for c in ({"dim": 30}, {"layers": 0}, {"dropout": 1.0}, {"bins": 0})),
        ("must", lambda: network(embedding="cnn")),
        ("must", lambda: network(image_size=30)),
        ("normaliser must be", lambda: system("ipdf", normaliser="none")),
        ("samples must be", lambda: system("ipdf", samples="none")),
        ("level", lambda: system("ipdf", level=99)),
        ("negatives must be positive", lambda: system("ipdf", negatives=0)),
        ("encoder must be one of", lambda: system("mog", encoder="resnet50", channels=3)),
        ("min_std must be positive", lambda: system("mog", min_std=0.0)),
        ("training must be", lambda: system("bingham", training="luck")),
        ("relaxation must lie", lambda: system("bingham", relaxation=1.0)),
        ("components must be positive", lambda: system("bingham", components=0)),
        ("euler must be one of", lambda: system("vonmises", euler="XYX")),
        ("level must be one of", lambda: system("classification", level=5)),
        ("segments must be positive", lambda: system("flow", segments=0)),
        ("encoder must be one of", lambda: system("flow", encoder="eyes")),
        ("has no field chanels", lambda: system("flow", chanels=1)),
        ("channels must be one of 1", lambda: system("flow", channels=2)),
        ("image_size must be a multiple", lambda: system("flow", encoder="stem", image_size=30)),
        ("at least 32", lambda: system("flow", encoder="resnet50", image_size=16)),
        ("level", lambda: grid_of_ipdf(level=40)),
        ("normaliser", lambda: grid_of_ipdf(normaliser="maybe")),
        *(("must", lambda c=c: TrainConfig(**c)) for c in ({"lr": 0.0}, {"schedule": "linear"}, {"batch_size": 0})),
        *(("must", lambda c=c: TrainConfig(**c)) for c in ({"warmup": 1.0}, {"clip": -1.0}, {"frozen_norms": 1.5})),
        ("categories", lambda: create_app({"toy": tiny_model(embedding="category", tokens=4)})),
        ("at least one model", lambda: create_app({})),
        ("queue must be positive", lambda: Limits(queue=0)),
    ],
    "cameras and poses": [
        *(("box", lambda b=b: cut(PHOTO, b, 32)) for b in ((0, 0, 0, 5), (300, 10, 20, 20), (0, 0, NAN, 5), (1, 2, 3))),
        *(("camera", lambda x=x: Camera(fx=x[0], fy=x[1], cx=1.0, cy=1.0)) for x in ((0.0, 300.0), (300.0, math.inf))),
        *(
            ("less than 180", lambda f=f: cut(PHOTO, (10, 10, 50, 50), 16, Camera(fx=f, fy=f, cx=30.0, cy=30.0)))
            for f in (1e-300, 1e-3)
        ),
        ("as many, or one for all, got 2 for 3", lambda: poses([[1, 2, 3, 4], [1, 2, 3, 4]], count=3)),
        ("must meet its image", lambda: poses((300, 300, 20, 20))),
        ("positive radius", lambda: part_of(of_part({"radius": -1.0}))),
        ("needs the part's size", lambda: poses(model=of_part(None))),
        ("rotations only", lambda: poses(model=aquamam.load("cylinder-plain"))),
        ("1 parts and 2 classes", lambda: to_detection3d([[]], "camera", class_ids=["die", "cup"])),
    ],
    "meshes and renders": [
        ("at least one triangle", lambda: triangle(faces=np.zeros((0, 3), int))),
        ("finite", lambda: triangle(vertices=np.full((3, 3), np.inf))),
        *(("must name vertices 0 to 2", lambda i=i: triangle(faces=np.array([(0, 1, i)]))) for i in (3, -1)),
        ("come together", lambda: triangle(uv=np.zeros((1, 3, 2)))),
        ("uv must", lambda: triangle(uv=np.full((1, 3, 2), NAN), texture=np.zeros((2, 2, 3), np.uint8))),
        *(("R must", lambda R=R: render(TET, R)) for R in (2 * np.eye(3), np.diag([1.0, 1, -1]), np.full((3, 3), NAN))),
        *(
            ("R must", lambda R=R: render(TET, R))
            for R in (np.zeros(4), np.full(4, NAN), np.zeros((2, 3)), np.zeros(()))
        ),
        ("pass backgrounds", lambda: render(TET, STILL, RenderSettings(background="random"))),
        ("backgrounds must", lambda: render(TET, STILL, backgrounds=np.zeros((2, 2)))),
        *(("size", lambda size=size: RenderSettings(size=size)) for size in (0, (10, 9000))),
        ("supersample", lambda: RenderSettings(supersample=0)),
        ("distance", lambda: RenderSettings(distance=-1.0)),
        ("near", lambda: RenderSettings(near=9.0)),
        ("fov_deg", lambda: RenderSettings(fov_deg=180.0)),
        ("ambient", lambda: RenderSettings(ambient=-1.0)),
        ("light", lambda: RenderSettings(light=(0.0, 0.0, 0.0))),
        *(("background", lambda colour=colour: RenderSettings(background=colour)) for colour in ("blue", (0, 0, 256))),
        ("colour", lambda: RenderSettings(colour=(0, 0, -1))),
        ("lense", lambda: RenderSettings.from_dict({"lense": 3})),
        ("labels", lambda: contact_sheet(np.zeros((7, 9, 9, 3), np.uint8), labels=["a"])),
        ("'dice' is neither a file nor a solid; the solids are die, cylinder, tet", lambda: open_object("dice")),
        (r"die, cylinder, tet, .*got 'dice'", lambda: solid("dice")),
        ("one of none, mild, strong, got 'wild'", lambda: augmentation("wild")),
        ("turn_deg .* must lie in 0 ... 180, got 200", lambda: AugmentSettings(turn_deg=200.0)),
        ("noise", lambda: AugmentSettings(noise=NAN)),
        ("invertible", lambda: BENT.ray(1900.0, 1060.0)),
        ("at least 20", lambda: find_typicality(tiny("stem"), PhotoDataset(solid("die"), 16, length=5))),
        ("mesh error", lambda: PhotoDataset(solid("die"), 32, mesh_error=0.5)),
    ],
}


@pytest.mark.parametrize("subject", RULES)
def test_what_breaks_a_rule_is_told_in_one_sentence(subject):
    for words, call in RULES[subject]:
        refused(words, call)
