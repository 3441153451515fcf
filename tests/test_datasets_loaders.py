"""Every loader reads small files in the exact layout of its data set, made here, and says what is wrong with others."""

import io
import json
import pickle
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from scipy.io import savemat
from scipy.spatial.transform import Rotation

from aquamam.data import open_dataset
from aquamam.data.loaders.bop import BopDataset
from aquamam.data.loaders.folder import FolderDataset, OriginalDataset
from aquamam.data.loaders.modelnet import ModelNetDataset
from aquamam.data.loaders.pascal3d import PascalDataset
from aquamam.data.loaders.symsol import SymsolDataset
from aquamam.data.open import splits_of
from aquamam.geometry.camera import crop_camera, cut
from aquamam.geometry.rotations import geodesic_angle
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.poses import Part
from aquamam.posterior.poses import CropFrames
from aquamam.training.start import fingerprint

TRUTHS = Rotation.random(6, random_state=0)
GL_FROM_CV = np.diag([1.0, -1.0, -1.0])


def apart(q: np.ndarray, truth: Rotation) -> float:
    """Largest angle between quaternions and rotations, in radians."""
    other = torch.from_numpy(np.array(truth.as_quat(), np.float64)).reshape(-1, 4)
    return float(geodesic_angle(torch.from_numpy(q).reshape(-1, 4), other).max())


def picture(k: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(k).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def save(k: int, path: Path, **options) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(k, **options).save(path)
    return np.asarray(picture(k, **options))


# --- the original ---------------------------------------------------------------------------------------------------


@pytest.fixture
def original(tmp_path) -> Path:
    root = tmp_path / "cube"
    for split, rows in {"train": range(4), "valid": range(4, 5), "test": range(5, 6)}.items():
        lines = ["img_f,yaw,pitch,roll"]
        for k in rows:
            save(k, root / "images" / split / f"{k}.png")
            lines.append(f"{k}.png," + ",".join(map(str, TRUTHS[k].as_euler("YXZ"))))
        (root / f"metadata_{split}.csv").write_text("\n".join(lines) + "\n")
    return root


def test_original_layout(original):
    data = open_dataset(original, "train")
    assert isinstance(data, OriginalDataset)
    assert (len(data), data.classes, splits_of(original)) == (4, ("cube",), ("test", "train", "valid"))
    for k, example in enumerate(data):
        assert apart(example.rotations, TRUTHS[k]) < 1e-7
        assert np.array_equal(example.image, np.asarray(picture(k)))


# --- SYMSOL ---------------------------------------------------------------------------------------------------------


def symsol_groups() -> dict[str, SymmetryGroup]:
    tilted = [0.0, 0.6, 0.8]
    return {
        "tet": SymmetryGroup.tetrahedral(),
        "cube": SymmetryGroup.octahedral(),
        "icosa": SymmetryGroup.icosahedral(),
        "cone": SymmetryGroup.revolution(tilted),
        "cyl": SymmetryGroup.revolution(tilted, flip=True),
        "tetX": SymmetryGroup.trivial(),
    }


@pytest.fixture(params=[np.savez, np.savez_compressed])
def symsol(tmp_path, request) -> Path:
    truths = torch.from_numpy(TRUTHS.as_quat())
    for split, rows in {"train": range(3), "test": range(3, 5)}.items():
        arrays = {}
        for shape, group in symsol_groups().items():
            q = group.equivalents(truths[list(rows)])
            arrays[shape] = Rotation.from_quat(q.reshape(-1, 4).numpy()).as_matrix().reshape(len(rows), -1, 3, 3)
            for k in range(len(rows)):
                save(k, tmp_path / split / "images" / f"{shape}_{k:05d}.png")
        request.param(tmp_path / split / "rotations.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})
    return tmp_path


def test_symsol_layout(symsol):
    data = open_dataset(symsol, "train")
    assert isinstance(data, SymsolDataset)
    assert data.classes == tuple(symsol_groups())
    assert len(data) == 18
    for i in (0, 5, 10, 17):
        assert data[i].label == data.classes[i // 3]
        assert data[i].name.endswith(f"{data.classes[i // 3]}_{i % 3:05d}.png")
        assert apart(data[i].rotations[:1], TRUTHS[i % 3]) < 1e-3  # the file is float32
        assert np.array_equal(data[i].image, np.asarray(picture(i % 3)))
    assert [len(data[3 * k].rotations) for k in range(6)] == [12, 24, 60, 360, 720, 1]
    batch = data.batch([0, 12, 17])
    assert batch.rotations.shape == (3, 720, 4)
    assert batch.counts.tolist() == [12, 720, 1]


def test_symsol_symmetries_are_read_off_the_equivalents(symsol):
    data = SymsolDataset(symsol, "train", shapes=["icosa", "cyl", "cone", "tetX"])
    assert len(data) == 12
    for shape in data.classes:
        found, true = data.symmetry(shape), symsol_groups()[shape]
        assert (found.axis is None) == (true.axis is None)
        assert len(found.elements) == len(true.elements)
        q = torch.from_numpy(data.rotations(3 * data.classes.index(shape)))
        assert found.distance(q[:1], q).max() < 1e-2  # all equivalents are one


def test_symsol_refusals(symsol):
    refused("has the splits test, train, not 'valid'", SymsolDataset, symsol, "valid")
    refused("not 'die'", SymsolDataset, symsol, "train", shapes=["die"])
    path = symsol / "train" / "rotations.npz"
    np.savez(path, tet=np.full((3, 12, 3, 3), 0.5))
    refused("must be orthogonal", SymsolDataset, symsol, "train")
    path.write_bytes(b"PK")
    refused(r"rotations\.npz must be an \.npz file", SymsolDataset, symsol, "train")


# --- ModelNet10-SO3 -------------------------------------------------------------------------------------------------


def modelnet_at(root: Path, protocol: int = 2) -> Path:
    for split in ("train_100V", "train_20V", "test_20V"):
        folder = root / f"{split}.Rawjpg.lmdb"
        folder.mkdir(parents=True)
        views = {}
        environment = lmdb.open(str(folder), map_size=1 << 20)
        with environment.begin(write=True) as transaction:
            for k, view in enumerate(["bathtub_0107.v001", "night_stand_0002.v000", "night_stand_0002.v011"]):
                x, y, z, w = TRUTHS[k].as_quat()
                views[view] = np.array([w, x, y, z])
                buffer = io.BytesIO()
                picture(k).convert("L").save(buffer, "JPEG", quality=95)
                transaction.put(view.encode(), buffer.getvalue())
        environment.close()
        (folder / "viewID2quat.pkl").write_bytes(pickle.dumps(views, protocol=protocol))
    return root


def test_modelnet_layout(tmp_path):
    data = open_dataset(modelnet_at(tmp_path))
    assert isinstance(data, ModelNetDataset)
    assert data.split == "train_100V"
    assert data.classes == ("bathtub", "night_stand")
    assert [e.label for e in data] == ["bathtub", "night_stand", "night_stand"]
    for k, example in enumerate(data):
        assert apart(example.rotations, TRUTHS[k]) < 1e-7
        grey = np.asarray(picture(k).convert("L"), float)
        assert example.image.shape == (8, 8, 3)
        assert np.abs(example.image[..., 0] - grey).mean() < 12
    assert len(pickle.loads(pickle.dumps(data))[2].image) == 8
    assert ModelNetDataset(tmp_path, "test").split == "test_20V"


def test_modelnet_refusals(tmp_path, monkeypatch):
    folder = modelnet_at(tmp_path) / "test_20V.Rawjpg.lmdb"
    (folder / "viewID2quat.pkl").rename(tmp_path / "viewID2quat.pkl")
    assert len(ModelNetDataset(tmp_path, "test_20V")) == 3  # beside the database will do
    (tmp_path / "viewID2quat.pkl").unlink()
    refused("has no viewID2quat", ModelNetDataset, tmp_path, "test_20V")

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    (folder / "viewID2quat.pkl").write_bytes(pickle.dumps({"a": Evil()}))
    refused("must be a pickled dictionary of quaternions", ModelNetDataset, tmp_path, "test_20V")
    assert not (tmp_path / "owned").exists()
    broken = modelnet_at(tmp_path / "broken")
    (broken / "test_20V.Rawjpg.lmdb" / "data.mdb").unlink()
    refused(r"test_20V\.Rawjpg\.lmdb cannot be opened", ModelNetDataset, broken, "test")
    other = modelnet_at(tmp_path / "other")
    monkeypatch.setitem(sys.modules, "lmdb", None)
    refused(r"pip install 'aquamam\[lmdb\]'", ModelNetDataset, other, "test")


# --- Pascal3D+ ------------------------------------------------------------------------------------------------------


def annotate(path: Path, filename: str, objects: list[dict]) -> None:
    fields = ("class", "bbox", "occluded", "truncated", "difficult", "viewpoint")
    record = np.zeros((1, len(objects)), dtype=[(name, object) for name in fields])
    for k, thing in enumerate(objects):
        for name in fields:
            record[0, k][name] = thing[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"record": {"filename": filename, "objects": record}})


FRONT = {"azimuth": 0.0, "elevation": 0.0, "theta": 0.0, "distance": 5.0, "px": 1.0, "py": 1.0}
SEEN = {**FRONT, "azimuth": 30.0, "elevation": 10.0, "theta": -5.0}


def thing(label="car", box=(11, 6, 30, 15), viewpoint=SEEN, **flags) -> dict:
    flags = {"occluded": 0, "truncated": 0, "difficult": 0, **flags}
    return {"class": label, "bbox": np.array(box, float), "viewpoint": viewpoint, **flags}


@pytest.fixture
def pascal(tmp_path) -> Path:
    annotations, images = tmp_path / "Annotations", tmp_path / "Images"
    save(0, images / "car_pascal" / "2008_000001.jpg", size=(40, 20))
    unusable = [thing(truncated=1), thing(occluded=1), thing(difficult=1), thing("boat")]
    unusable += [thing(viewpoint={**SEEN, "distance": 0.0}), thing(viewpoint={"azimuth_coarse": 30.0})]
    annotate(annotations / "car_pascal" / "2008_000001.mat", "2008_000001.jpg", [thing(), *unusable])
    save(1, images / "car_imagenet" / "n1_1.JPEG", size=(40, 20))
    annotate(annotations / "car_imagenet" / "n1_1.mat", "n1_1.JPEG", [thing(box=(1, 1, 40, 20))])
    save(2, images / "boat_imagenet" / "n2_1.JPEG", size=(40, 20))
    annotate(annotations / "boat_imagenet" / "n2_1.mat", "n2_1.JPEG", [thing("boat")])
    (tmp_path / "Image_sets").mkdir()
    (tmp_path / "Image_sets" / "car_imagenet_train.txt").write_text("n1_1\n")
    voc = tmp_path / "PASCAL" / "VOCdevkit" / "VOC2012" / "ImageSets" / "Main"
    voc.mkdir(parents=True)
    (voc / "car_val.txt").write_text("2008_000001  1\n2008_000009 -1\n")
    return tmp_path


def test_pascal_layout(pascal):
    data = open_dataset(pascal, size=16)
    assert isinstance(data, PascalDataset)
    assert data.split == "train"
    assert [data.name(i) for i in range(len(data))] == ["Images/car_imagenet/n1_1.JPEG"]
    everything = PascalDataset(pascal, "all", size=16)
    assert [everything.label(i) for i in range(len(everything))] == ["boat", "car", "car"]
    turned = Rotation.from_euler("ZXZ", [-5, 10 - 90, -30], degrees=True)
    for example in everything:
        assert apart(example.rotations, turned) < 1e-7
        assert example.image.shape == (16, 16, 3)
    assert [data.name(0) for data in [PascalDataset(pascal, "val")]] == ["Images/car_pascal/2008_000001.jpg"]


def test_pascal_viewpoint_looks_right(pascal):
    """From azimuth 0 and elevation 0 the camera sees the object's z (up) as up and its -y (front) towards itself."""
    annotate(pascal / "Annotations" / "car_imagenet" / "n1_1.mat", "n1_1.JPEG", [thing(viewpoint=FRONT)])
    R = Rotation.from_quat(PascalDataset(pascal, "train").rotations(0)[0]).as_matrix()
    assert np.allclose(R @ [0, 0, 1], [0, 1, 0], atol=1e-12)
    assert np.allclose(R @ [0, -1, 0], [0, 0, 1], atol=1e-12)


def test_pascal_crops_are_centred_squares(pascal):
    data = PascalDataset(pascal, "all", classes=["boat"], margin=1.0)
    image = np.asarray(Image.open(pascal / "Images" / "boat_imagenet" / "n2_1.JPEG"))
    crop = data[0].image  # box of 20 x 10 with corners (10, 5), (30, 15): the square is rows 0..20
    assert np.array_equal(crop, image[0:20, 10:30])
    refused("not 'train-set'; choose", PascalDataset, pascal, "train-set")
    refused("has the classes boat, car, not 'bus'", PascalDataset, pascal, classes=["bus"])


# --- BOP ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bop(tmp_path) -> Path:
    half_turn = np.eye(4)
    half_turn[:3, :3] = np.diag([-1, -1, 1])
    info = {
        "1": {"diameter": 100.0, "symmetries_discrete": [half_turn.ravel().tolist()]},
        "2": {"diameter": 80.0, "symmetries_continuous": [{"axis": [0, 0, 1], "offset": [0, 0, 0]}]},
        "5": {"diameter": 60.0},
    }
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "models_info.json").write_text(json.dumps(info))
    scene = tmp_path / "test" / "000048"
    truths, infos = {}, {}
    for image in (0, 12):
        save(image, scene / "rgb" / f"{image:06d}.png", size=(64, 48))
        rows = [(1, [0.0, 0.0, 700.0], 0.9), (2, [150.0, -80.0, 600.0], 1.0), (5, [1.0, 2.0, 900.0], 0.05)]
        truths[str(image)] = [
            {"obj_id": number, "cam_R_m2c": TRUTHS[k].as_matrix().ravel().tolist(), "cam_t_m2c": t}
            for k, (number, t, _) in enumerate(rows)
        ]
        infos[str(image)] = [{"bbox_visib": [10, 8, 20, 12], "visib_fract": visible} for _, _, visible in rows]
    cameras = {k: {"cam_K": [50, 0, 19.5, 0, 50, 13.5, 0, 0, 1]} for k in truths}
    for name, value in (("gt", truths), ("gt_info", infos), ("camera", cameras)):
        (scene / f"scene_{name}.json").write_text(json.dumps(value))
    return tmp_path


def test_bop_layout(bop):
    data = open_dataset(bop, size=24)
    assert isinstance(data, BopDataset)
    assert data.split == "test"
    assert data.classes == ("obj_000001", "obj_000002")
    assert len(data) == 4  # the third object is hidden
    for i, example in enumerate(BopDataset(bop, "test", size=24, allocentric=False)):
        assert apart(example.rotations, Rotation.from_matrix(GL_FROM_CV @ TRUTHS[i % 2].as_matrix())) < 1e-7
        assert example.image.shape == (24, 24, 3)
    assert data.symmetry("obj_000001").order == 2
    assert data.symmetry("obj_000002").axis is not None
    assert data.symmetry("obj_000005").order == 1
    assert len(BopDataset(bop, "test", objects=[2])) == 2
    assert len(BopDataset(bop, "test", min_visible=0.0)) == 6
    native = BopDataset(bop, "test")[0].image  # 1.25 times the longer side of the box, here about the camera's axis
    plain = np.asarray(cut(picture(0, (64, 48)), (10, 8, 20, 12), 25)[0])
    assert np.abs(native.astype(int) - plain).max() <= 1


def test_bop_windows_and_rotations_of_crops_tell_the_pose(bop):
    """Back from what a crop shows, through its camera and the part's size, to BOP's own pose."""
    part = Part(radius=40.0, centre=(3.0, -4.0, 5.0))
    data = BopDataset(bop, "test", objects=[2], part=part, size=8)
    batch = data.batch(range(2))
    crops = [crop_camera(one.box, one.camera) for one in data.instances]
    frames = CropFrames(crops, radius=part.radius, centre=part.centre)
    pose = frames.to_pose(batch.rotations[:, 0], batch.windows)
    torch.testing.assert_close(
        pose.translation[0], torch.tensor([150.0, 80.0, -600.0], dtype=torch.float64), rtol=1e-5, atol=0
    )
    for q in (pose.rotation[:1], data.egocentric(0, batch.rotations[0])):
        assert apart(q.numpy(), Rotation.from_matrix(GL_FROM_CV @ TRUTHS[1].as_matrix())) < 1e-6
    assert BopDataset(bop, "test", objects=[2], size=8).batch([0]).windows is None  # nobody knows the object's size


def test_bop_refusals(bop):
    refused(r"has the objects 1, 2, not 7", BopDataset, bop, "test", objects=[7])
    path = bop / "test" / "000048" / "scene_gt.json"
    truths = json.loads(path.read_text())
    truths["0"][0]["cam_R_m2c"] = [2.0, *truths["0"][0]["cam_R_m2c"][1:]]
    path.write_text(json.dumps(truths))
    refused("must be orthogonal", BopDataset, bop, "test")
    path.write_text("{")
    refused(r"scene_gt\.json must be a JSON file", BopDataset, bop, "test")
    path.write_text('{"0": [{"obj_id": 1}]}')
    refused("must be BOP's format", BopDataset, bop, "test")
    camera = path.parent / "scene_camera.json"
    camera.write_text('{"0": {"cam_K": [50, 1, 32, 0, 50, 24, 0, 0, 1]}}')
    refused("no skew", BopDataset, bop, "test")
    (path.parent / "scene_gt_info.json").unlink()
    refused(r"scene_gt_info\.json is missing", BopDataset, bop, "test")


# --- a plain folder -------------------------------------------------------------------------------------------------


def table_at(root: Path, header: str, values, name: str = "poses.csv", extra: str = "") -> Path:
    lines = [f"image,{header}"]
    for k, row in enumerate(values):
        save(k, root / "pictures" / f"{k}.png")
        lines.append(f"pictures/{k}.png," + ",".join(map(str, row)) + extra)
    (root / name).write_text("\n".join(lines) + "\n")
    return root


WRITTEN = {
    "qx,qy,qz,qw": TRUTHS.as_quat(),
    "qw,qx,qy,qz": TRUTHS.as_quat()[:, [3, 0, 1, 2]],
    "quat_xyzw": [[" ".join(map(str, q))] for q in TRUTHS.as_quat()],
    "quat_wxyz": [[" ".join(map(str, q[[3, 0, 1, 2]]))] for q in TRUTHS.as_quat()],
    "r11,r12,r13,r21,r22,r23,r31,r32,r33": TRUTHS.as_matrix().reshape(-1, 9),
    "r00,r01,r02,r10,r11,r12,r20,r21,r22": TRUTHS.as_matrix().reshape(-1, 9),
    "rotvec_x,rotvec_y,rotvec_z": TRUTHS.as_rotvec(),
    "euler_YXZ_deg_1,euler_YXZ_deg_2,euler_YXZ_deg_3": TRUTHS.as_euler("YXZ", degrees=True),
    "euler_xyz_rad": [[" ".join(map(str, angles))] for angles in TRUTHS.as_euler("xyz")],
}


STATED = {
    **{header: (header, values) for header, values in WRITTEN.items()},  # these describe themselves
    "wxyz:a,b,c,d": ("a,b,c,d", TRUTHS.as_quat()[:, [3, 0, 1, 2]]),
    "xyzw:q": ("q", [[" ".join(map(str, q))] for q in TRUTHS.as_quat()]),
    "matrix:R": ("R", [[" ".join(map(str, R.ravel()))] for R in TRUTHS.as_matrix()]),
    "rotvec:rx,ry,rz": ("rx,ry,rz", TRUTHS.as_rotvec()),
    "euler-YXZ-rad:yaw,pitch,roll": ("yaw,pitch,roll", TRUTHS.as_euler("YXZ")),
    "euler-zyx-deg:c,b,a": ("a,b,c", TRUTHS.as_euler("zyx", degrees=True)[:, ::-1]),
}


@pytest.mark.parametrize("rotation", STATED)
def test_folder_with_columns_that_are_stated_or_describe_themselves(tmp_path, rotation):
    data = open_dataset(
        table_at(tmp_path, *STATED[rotation]), **({} if rotation in WRITTEN else {"rotation": rotation})
    )
    assert isinstance(data, FolderDataset)
    assert len(data) == 6
    for k, example in enumerate(data):
        assert apart(example.rotations, TRUTHS[k]) < 1e-6
        assert np.array_equal(example.image, np.asarray(picture(k)))


@pytest.mark.parametrize(
    "header", ["q0,q1,q2,q3", "x,y,z,w", "quaternion", "rx,ry,rz", "yaw,pitch,roll", "R", "qx,qy,qz", "foo"]
)
def test_doubtful_columns_are_never_guessed(tmp_path, header):
    root = table_at(tmp_path, header, [["1"] * (header.count(",") + 1)])
    refused(r"does not say how its columns image.* hold a rotation; name the columns", open_dataset, root)


def test_folder_with_two_rotations_another_camera_or_direction(tmp_path):
    flipped = Rotation.from_matrix(GL_FROM_CV @ TRUTHS.as_matrix()).inv()
    both = np.concatenate([flipped.as_quat(), TRUTHS.as_rotvec()], -1)
    root = table_at(tmp_path, "qx,qy,qz,qw,rotvec_x,rotvec_y,rotvec_z", both)
    refused("more than one rotation", open_dataset, root)
    data = FolderDataset(root, camera="opencv", inverted=True, rotation="xyzw:qx,qy,qz,qw")
    assert max(apart(e.rotations, TRUTHS[k]) for k, e in enumerate(data)) < 1e-7
    refused("camera must be opengl or opencv, got 'blender'", FolderDataset, root, camera="blender")


def test_folder_with_classes_splits_symmetries_and_many_truths(tmp_path):
    root = tmp_path
    lines = ["file,class,split,qx,qy,qz,qw,lens"]
    for k, (file, label, split) in enumerate([("a", "nut", "train"), ("a", "nut", "train"), ("b", "bolt", "test")]):
        save(k, root / f"{file}.png")
        lines.append(f"{file}.png,{label},{split}," + ",".join(map(str, TRUTHS[k].as_quat())) + ",50mm")
    (root / "poses.csv").write_text("\n".join(lines))
    (root / "symmetries.json").write_text(json.dumps({"nut": SymmetryGroup.cyclic(6).to_dict()}))
    assert splits_of(root) == ("all", "test", "train")
    data = open_dataset(root)
    assert data.split == "train"
    assert len(data) == 1
    assert apart(data[0].rotations, TRUTHS[:2]) < 1e-7
    assert data.symmetry("nut").order == 6
    assert data.symmetry("bolt") is None
    assert open_dataset(root, "test")[0].label == "bolt"
    assert data.describe()["ignored"] == ["lens"]
    refused("has the splits all, test, train, not 'valid'", open_dataset, root, "valid")


def test_folder_with_a_table_for_each_split(tmp_path):
    for k, split in enumerate(["train", "test"]):
        table_at(tmp_path, "qx,qy,qz,qw", TRUTHS[k : k + 1].as_quat(), name=f"{split}.csv")
    assert apart(open_dataset(tmp_path).rotations(0), TRUTHS[0]) < 1e-7
    assert apart(open_dataset(tmp_path, "test").rotations(0), TRUTHS[1]) < 1e-7
    assert apart(open_dataset(tmp_path / "test.csv").rotations(0), TRUTHS[1]) < 1e-7
    refused("has the splits test, train, not 'valid'", open_dataset, tmp_path, "valid")
    (tmp_path / "train.csv").unlink()
    assert splits_of(tmp_path) == ("all", "test")  # a lone table may be a held-out one


def test_a_table_that_is_not_divided_has_no_held_out_part(tmp_path):
    table_at(tmp_path, "qx,qy,qz,qw", TRUTHS[:1].as_quat())
    assert len(open_dataset(tmp_path, "all")) == 1
    for split in ("train", "valid", "test"):
        refused("splits all", open_dataset, tmp_path, split)
    before = fingerprint(open_dataset(tmp_path, "all"))
    table_at(tmp_path, "qx,qy,qz,qw", TRUTHS[1:2].as_quat())
    assert fingerprint(open_dataset(tmp_path, "all")) != before  # so that a run's folder refuses other data


BAD_TABLES = {
    "": r"is empty; its first line must name the columns",
    "image,qx,qy,qz,qw\n": "has no rows below its header",
    "image,qx,qx\n": "must have different names, got 'qx' twice",
    "image,qx,qy,qz,qw\na.png,1,0,0\n": "line 2 of .* must have 5 fields like its header, got 4",
    "image,qx,qy,qz,qw\na.png,1,0,0,zero\n": "line 2 of .* must have a finite number in column 'qw', got 'zero'",
    "image,qx,qy,qz,qw\na.png,nan,0,0,1\n": "line 2 of .* must have a finite number in column 'qx', got 'nan'",
    "image,qx,qy,qz,qw\na.png,0,0,0,1\nb.png,1,0,0,1\n": "line 3 of .* must have unit norm",
    "image,qx,qy,qz,qw\na.png,0,0,0,0\n": "line 2 of .* must have unit norm .* a zero quaternion is no rotation",
    "image,r11,r12,r13,r21,r22,r23,r31,r32,r33\na.png,1,0,0,0,1,0,0,0,-1\n": "line 2 of .* determinant",
    "image,r11,r12,r13,r21,r22,r23,r31,r32,r33\na.png,1,0,0,0,2,0,0,0,1\n": "line 2 of .* must be orthogonal",
    "image,quat_wxyz\na.png,1 0 0\n": "line 2 of .* must have 4 numbers in column 'quat_wxyz', got 3",
    "name,qx,qy,qz,qw\na.png,0,0,0,1\n": "must name its images in one column out of image, img",
    "image,file,qx,qy,qz,qw\na.png,a.png,0,0,0,1\n": "in one column out of .* got image and file",
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_bad_tables_are_told_in_one_sentence(tmp_path, text):
    (tmp_path / "poses.csv").write_text(text)
    refused(BAD_TABLES[text], open_dataset, tmp_path)


def test_bad_statements_are_told_in_one_sentence(tmp_path):
    table_at(tmp_path, "qx,qy,qz,qw", TRUTHS.as_quat())
    for rotation, rule in {
        "quaternion:qx,qy,qz,qw": "rotation must be KIND:COLUMNS",
        "euler-XYz-deg:qx,qy,qz": "rotation must be KIND:COLUMNS",
        "wxyz:qx,qy,qz,qq": "has the columns image, qx, qy, qz, qw, not 'qq'",
        "wxyz:qx,qy,qz": "wxyz needs 4 columns, or one with 4 numbers, got 3",
        "euler-XXY-deg:qx,qy,qz": "neighbours different",
    }.items():
        refused(rule, open_dataset, tmp_path, rotation=rotation)


# --- recognising ----------------------------------------------------------------------------------------------------


def test_unknown_layouts_and_options_are_refused(tmp_path, original):
    (tmp_path / "empty").mkdir()
    (tmp_path / "symsol.zip").write_bytes(b"PK")
    for path, options, sentence in (
        (tmp_path / "nowhere", {}, "no data set"),
        (tmp_path / "empty", {}, "is not laid out like any known data set"),
        (tmp_path / "symsol.zip", {}, "is an archive; unpack it"),
        (original, {"kind": "coco"}, "kind must be one of aquamam, original, symsol"),
        (original, {"allocentric": True}, "kind original has no option allocentric"),
        (original, {"size": 0}, "size must be at least 1"),
    ):
        refused(sentence, open_dataset, path, **options)
