"""Promises of meshes and of loading users' own."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trimesh
from parts import written
from PIL import Image
from refusals import refused

from aquamam.rendering.meshes import FIT_RADIUS, Mesh, crease_normals, load_mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid

SMALL = RenderSettings(size=64)
VIEW = np.array([0.2, 0.3, 0.1, 0.927])
VIEW /= np.linalg.norm(VIEW)
TRIANGLE = "v 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\n"


def textured(mesh: Mesh) -> trimesh.Trimesh:
    assert mesh.uv is not None
    corners = mesh.vertices[mesh.faces].reshape(-1, 3)
    piece = trimesh.Trimesh(corners, np.arange(len(corners)).reshape(-1, 3), process=False)
    material = trimesh.visual.material.PBRMaterial(name="paint", baseColorTexture=Image.fromarray(mesh.texture))
    piece.visual = trimesh.visual.TextureVisuals(uv=mesh.uv.reshape(-1, 2).astype(float), material=material)
    return piece


def write_obj(path: Path, mesh: Mesh, texture: str = "paint.png") -> Path:
    """As most programs do: shared vertices, uv by index, a material file, a texture."""
    assert mesh.uv is not None
    lines = [f"mtllib {path.stem}.mtl", "usemtl paint"]
    lines += [f"v {x!r} {y!r} {z!r}" for x, y, z in mesh.vertices.tolist()]
    lines += [f"vt {u!r} {v!r}" for u, v in mesh.uv.reshape(-1, 2).tolist()]
    lines += [
        "f " + " ".join(f"{vertex + 1}/{3 * i + k + 1}" for k, vertex in enumerate(face))
        for i, face in enumerate(mesh.faces.tolist())
    ]
    path.write_text("\n".join(lines))
    path.with_suffix(".mtl").write_text(f"newmtl paint\nKd 1 1 1\nmap_Kd {texture}\n")
    Image.fromarray(mesh.texture).save(path.parent / texture)
    return path


def same_picture(one: Mesh, two: Mesh, tolerance: float = 0.02) -> bool:
    a, b = (render(mesh, VIEW, SMALL).astype(int) for mesh in (one, two))
    return bool(np.abs(a - b).mean() < tolerance)


@pytest.mark.parametrize("extension", ["obj", "glb", "gltf", "ply"])
def test_files_bring_their_texture(tmp_path, extension):
    die, path = solid("die").mesh, tmp_path / f"die.{extension}"
    Image.fromarray(die.texture).save(tmp_path / "paint.png")
    if extension == "obj":
        write_obj(path, die)
    elif extension == "gltf":
        for name, data in trimesh.Scene(textured(die)).export(file_type="gltf").items():
            (path if name.endswith(".gltf") else tmp_path / name).write_bytes(data)
    else:
        data = textured(die).export(file_type=extension)
        path.write_bytes(data.replace(b"end_header", b"comment TextureFile paint.png\nend_header", 1))
    assert same_picture(load_mesh(path), die)


def test_obj_may_have_comments_after_numbers_and_names_with_a_hash(tmp_path):
    path = write_obj(tmp_path / "die.obj", solid("die").mesh)
    plain = load_mesh(path)
    text = path.read_text().replace("usemtl paint", "usemtl paint #1").replace("mtllib", "# a die\nmtllib")
    path.write_text(
        "\n".join(line + "  # note 3 4 5" if line[:2] in ("v ", "vt", "f ") else line for line in text.split("\n"))
    )
    path.with_suffix(".mtl").write_text("newmtl paint #1\nKd 1 1 1\nmap_Kd paint.png\n")
    assert load_mesh(path).hash == plain.hash


def test_a_missing_material_file_warns_and_leaves_the_mesh_grey(tmp_path):
    (tmp_path / "m.obj").write_text("mtllib gone.mtl\n" + TRIANGLE + "f 1/1 2/1 3/1\n")
    with pytest.warns(UserWarning, match=r"m.obj names the material file gone.mtl, which is not there"):
        mesh = load_mesh(tmp_path / "m.obj")
    assert mesh.texture is None
    assert mesh.colours is None


def test_untextured_leaves_paint_out_and_needs_no_texture(tmp_path):
    path = write_obj(tmp_path / "die.obj", solid("die").mesh)
    (tmp_path / "paint.png").unlink()
    refused(r"paint.png, which is not there; put it there, or leave textures out", load_mesh, path)
    bare = load_mesh(path, untextured=True)
    assert (bare.texture, bare.colours, len(bare.faces)) == (None, None, 12)


@pytest.mark.parametrize("name", [r"C:\maps\paint.png", "/home/someone/paint.png", "paint.png"])
def test_a_texture_of_another_machine_is_found_beside_the_mesh(tmp_path, name):
    path = write_obj(tmp_path / "die.obj", solid("die").mesh)
    path.with_suffix(".mtl").write_text(f"newmtl paint\nKd 1 1 1\nmap_Kd {name}\n")
    assert same_picture(load_mesh(path), solid("die").mesh)


@pytest.mark.parametrize("kind", ["vertex", "face"])
def test_ply_brings_its_colours(tmp_path, kind):
    tet = solid("tetX").mesh
    corners = tet.vertices[tet.faces].reshape(-1, 3)
    piece = trimesh.Trimesh(corners, np.arange(12).reshape(4, 3), process=False)
    if kind == "vertex":
        piece.visual.vertex_colors = tet.colours.reshape(-1, 3)
    else:
        piece.visual.face_colors = tet.colours[:, 0]
    piece.export(tmp_path / "tet.ply")
    assert same_picture(load_mesh(tmp_path / "tet.ply", center=False), tet)


@pytest.mark.parametrize("extension", ["stl", "off", "obj", "ply", "glb"])
def test_plain_shapes_load_from_every_format(tmp_path, extension):
    icosa = solid("icosa").mesh
    loaded = load_mesh(written(icosa, tmp_path / f"icosa.{extension}"))
    assert (len(loaded.vertices), len(loaded.faces)) == (12, 20)
    assert loaded.name == "icosa"
    covered = [render(mesh, VIEW, SMALL, alpha=True)[..., 3] for mesh in (loaded, icosa)]
    assert np.abs(covered[0].astype(int) - covered[1]).mean() < 0.2


def test_several_materials_share_one_texture(tmp_path):
    """Two quads with textures of their own, one of them repeated, and one of a plain colour."""
    for name, colour in (("red", (180, 0, 0)), ("blue", (0, 0, 180))):
        pixels = np.zeros((16, 24, 3), np.uint8)
        pixels[:, :12] = colour
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    (tmp_path / "three.mtl").write_text("newmtl a\nmap_Kd red.png\nnewmtl b\nmap_Kd blue.png\nnewmtl c\nKd 0 0.7 0\n")
    lines = ["mtllib three.mtl", "vt 0 0", "vt 1 0", "vt 1 1", "vt 0 1", "vt 2 0", "vt 2 1"]
    for k, (material, uv) in enumerate((("a", (1, 2, 3, 4)), ("b", (1, 5, 6, 4)), ("c", (1, 2, 3, 4)))):
        x = 2 * k - 3
        lines += [f"v {x} -1 0", f"v {x + 2} -1 0", f"v {x + 2} 1 0", f"v {x} 1 0", f"usemtl {material}"]
        a, b, c, d = (f"{4 * k + i + 1}/{uv[i]}" for i in range(4))
        lines += [f"f {a} {b} {c}", f"f {a} {c} {d}"]
    (tmp_path / "three.obj").write_text("\n".join(lines))
    mesh = load_mesh(tmp_path / "three.obj", scale=0.5)
    image = render(mesh, np.eye(3), RenderSettings(size=192, ambient=1, diffuse=0))
    row, unit = image[96].astype(int), 192 / (2 * 8 * np.tan(np.radians(26.98) / 2)) / 2
    seen = [tuple(row[int(96 + unit * x)]) for x in (-2.5, -1.5, -0.75, -0.25, 0.25, 0.75, 2.0)]
    for colour, expected in zip(
        seen, [(180, 0, 0), (0, 0, 0), (0, 0, 180), (0, 0, 0), (0, 0, 180), (0, 0, 0), (0, 178, 0)], strict=True
    ):
        assert np.allclose(colour, expected, atol=4)


def test_parts_of_a_scene_stand_in_their_places(tmp_path):
    box, place = trimesh.creation.box((1, 1, 1)), np.eye(4)
    place[0, 3] = 5.0
    scene = trimesh.Scene()
    scene.add_geometry(box)
    scene.add_geometry(box, transform=place)
    (tmp_path / "two.glb").write_bytes(scene.export(file_type="glb"))
    mesh = load_mesh(tmp_path / "two.glb", scale=1)
    assert np.allclose(mesh.vertices.max(0), [3, 0.5, 0.5])
    assert len(mesh.faces) == 24


@pytest.fixture
def wedge(tmp_path) -> Path:
    """A tetrahedron off the origin: longest along x, then y, then z."""
    path = tmp_path / "wedge.off"
    path.write_text("OFF\n4 4 0\n10 0 0\n16 0 0\n10 4 0\n10 0 2\n3 0 2 1\n3 0 1 3\n3 0 3 2\n3 1 2 3\n")
    return path


def test_a_mesh_is_centred_and_fits_the_view_or_keeps_its_units(wedge):
    mesh = load_mesh(wedge)
    assert mesh.radius == pytest.approx(FIT_RADIUS)
    assert np.allclose(mesh.vertices.min(0), -mesh.vertices.max(0))
    assert np.allclose(load_mesh(wedge, scale=1, center=False).vertices.max(0), [16, 4, 2])
    assert np.allclose(load_mesh(wedge, scale=0.001, center=False).vertices.max(0), [0.016, 0.004, 0.002])


@pytest.mark.parametrize(("up", "height"), [("x", 6), ("-x", 6), ("y", 4), ("-y", 4), ("z", 2), ("-z", 2)])
def test_up_axis_becomes_y_by_a_rotation(wedge, up, height):
    mesh = load_mesh(wedge, up=up, scale=1)
    assert np.ptp(mesh.vertices[:, 1]) == pytest.approx(height)
    lengths = np.linalg.norm(mesh.vertices[:, None] - mesh.vertices, axis=-1).sum(1)
    right_angle = mesh.vertices[lengths.argmin()]
    assert (right_angle[1] < 0) == (not up.startswith("-"))  # it is the lowest corner along each of the file's axes
    six_volumes = np.linalg.det(mesh.vertices[mesh.faces]).sum()
    assert six_volumes == pytest.approx(6 * 4 * 2)  # and not minus that: no mirror


def test_a_fine_ball_is_smooth_and_a_cube_is_flat():
    ball = trimesh.creation.icosphere(4)
    normals = crease_normals(np.array(ball.vertices), np.array(ball.faces))
    assert normals is not None
    assert (normals * ball.vertices[ball.faces]).sum(-1).min() > 0.999
    assert crease_normals(solid("cube").mesh.vertices, solid("cube").mesh.faces) is None
    assert crease_normals(np.array(ball.vertices), np.array(ball.faces), 0) is None


def test_a_cylinder_is_smooth_around_and_sharp_at_its_rims():
    cylinder = trimesh.creation.cylinder(1.0, 2.0, sections=64)
    vertices, faces = np.array(cylinder.vertices), np.array(cylinder.faces)
    normals = crease_normals(vertices, faces)
    assert normals is not None
    caps = np.abs(cylinder.face_normals[:, 2]) > 0.9
    assert np.allclose(np.abs(normals[caps]), [0, 0, 1], atol=1e-6)
    sides = vertices[faces[~caps]] * (1, 1, 0)
    assert (normals[~caps] * sides).sum(-1).min() > 0.999


def test_hash_is_of_the_content_and_not_of_the_name():
    die = solid("die").mesh
    assert die.hash == replace(die, name="other").hash == pickle.loads(pickle.dumps(die)).hash
    assert len({mesh.hash for mesh in (die, solid("cube").mesh, solid("tet").mesh, solid("tetX").mesh)}) == 4
    assert die.texture is not None
    repainted = die.texture.copy()
    repainted[0, 0, 0] += 1
    assert die.hash != replace(die, texture=repainted).hash


def test_a_mesh_does_not_change_with_the_arrays_it_came_from():
    vertices = np.array([(0.0, 0, 0), (1, 0, 0), (0, 1, 0)])
    mesh = Mesh(vertices=vertices, faces=np.array([(0, 1, 2)]))
    vertices[0] = 7
    assert mesh.vertices[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        mesh.vertices[0] = 1


PAINTED = "mtllib m.mtl\nusemtl a\n" + TRIANGLE + "f 1/1 2/1 3/1\n"
PLY = "ply\nformat ascii 1.0\n{}element vertex {}\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
GONE = {"asset": {"version": "2.0"}, "buffers": [{"uri": "gone.bin", "byteLength": 3}]}
BAD_FILES = {  # what it says: the files, of which the first is opened
    "is not there": {"gone/m.obj": None},
    "extension": {"m.xyz": "1 2 3"},
    "at least one triangle": {"m.obj": ""},
    "at least one triangle, m.obj|point clouds": {"m.obj": TRIANGLE},
    "at least one triangle, .*m.ply": {"m.ply": PLY.format("", 1) + "0 0 0\n"},
    "must have an area, all 1": {"m.obj": "v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n"},
    "must have an area": {"m.obj": "v 1 1 1\nv 1 1 1\nv 1 1 1\nf 1 2 3\n"},
    "finite": {"m.obj": "v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n"},
    "m.obj cannot be read": {"m.obj": TRIANGLE + "f 1 2 9\n"},
    "the texture .*gone.png": {"m.obj": PAINTED, "m.mtl": "newmtl a\nmap_Kd gone.png\n"},
    "no image": {"m.obj": PAINTED, "m.mtl": "newmtl a\nmap_Kd t.png\n", "t.png": "?"},
    "the buffer .*gone.bin": {"m.gltf": json.dumps(GONE)},
    "ply names the texture .*gone.png": {"m.ply": PLY.format("comment TextureFile gone.png\n", 0)},
    "m.ply cannot be read": {"m.ply": "ply garbage"},
    "m.glb cannot be read": {"m.glb": "garbage"},
    "m.gltf cannot be read": {"m.gltf": "{garbage"},
    "cannot be read|at least one triangle": {"m.stl": "garbage"},
    "m.off cannot be read": {"m.off": "OFF\n3 1"},
}


@pytest.mark.parametrize(("says", "files"), BAD_FILES.items(), ids=BAD_FILES.keys())
def test_a_bad_file_is_told_in_one_sentence(tmp_path, says, files):
    for file, text in files.items():
        if text is not None:
            (tmp_path / file).write_text(text)
    refused(says, load_mesh, tmp_path / next(iter(files)))


def test_a_bad_choice_is_told(wedge):
    refused("up must be one of x, y, z", load_mesh, wedge, up="w")
    for scale in ("big", 0, -1.0, float("nan")):
        refused("scale must be", load_mesh, wedge, scale=scale)
