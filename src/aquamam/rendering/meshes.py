"""Triangle meshes: what a renderer needs to know about an object."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from jaxtyping import Float, Integer, UInt8

from aquamam.errors import InputError

FIT_RADIUS = 3**0.5  # a cube of side 2, the die, just fits; at distance 8 it fills 93 % of the default view
GREY = (130, 134, 140)  # of what brings no colour


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Mesh:
    """A triangle mesh in object coordinates, with at most one texture.

    Stored as float64 vertices, int32 faces, float32 normals and uv, read-only.
    Corners are counter-clockwise seen from outside; faces are drawn from both sides all the same.
    `normals` are those of the corners (smooth shading); without them every face is flat.
    """

    vertices: Float[np.ndarray, "V 3"]
    faces: Integer[np.ndarray, "F 3"]
    normals: Float[np.ndarray, "F 3 3"] | None = None
    uv: Float[np.ndarray, "F 3 2"] | None = None  # of the corners; v points up, outside [0, 1] the texture repeats
    texture: UInt8[np.ndarray, "h w 3"] | None = None
    colours: UInt8[np.ndarray, "V 3"] | UInt8[np.ndarray, "F 3 3"] | None = None  # of vertices or of corners
    name: str = "mesh"

    def __post_init__(self) -> None:
        for field, dtype in (
            ("vertices", np.float64),
            ("faces", np.int32),
            ("normals", np.float32),
            ("uv", np.float32),
            ("texture", np.uint8),
            ("colours", np.uint8),
        ):
            value = getattr(self, field)
            if value is not None:
                value = np.array(value, dtype=dtype, order="C")  # a copy: the mesh does not change with its source
                value.flags.writeable = False
                object.__setattr__(self, field, value)
        _check(self)

    def __repr__(self) -> str:
        paint = "texture" if self.texture is not None else "colours" if self.colours is not None else "plain"
        return f"Mesh({self.name!r}, {len(self.vertices)} vertices, {len(self.faces)} faces, {paint})"

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content; the name does not count."""
        digest = hashlib.sha256(b"aquamam mesh 1")
        for field in ("vertices", "faces", "normals", "uv", "texture", "colours"):
            value = getattr(self, field)
            digest.update(f"|{field}:".encode())
            if value is not None:
                digest.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
        return digest.hexdigest()

    @property
    def radius(self) -> float:
        """Distance of the farthest corner from the origin, about which the object turns."""
        return float(np.linalg.norm(self.vertices, axis=1).max())


def _check(mesh: Mesh) -> None:
    """Raise InputError for arrays that are no mesh."""
    V, F = len(mesh.vertices), len(mesh.faces)
    rules = {
        "vertices": mesh.vertices.shape == (V, 3),
        "faces": mesh.faces.shape == (F, 3),
        "normals": mesh.normals is None or mesh.normals.shape == (F, 3, 3),
        "uv": mesh.uv is None or mesh.uv.shape == (F, 3, 2),
        "texture": mesh.texture is None
        or (mesh.texture.ndim == 3 and mesh.texture.shape[2] == 3 and mesh.texture.size > 0),
        "colours": mesh.colours is None or mesh.colours.shape in {(V, 3), (F, 3, 3)},
    }
    for field, holds in rules.items():
        if not holds:
            raise InputError(
                f"{field} of a mesh with V={V} vertices and F={F} faces must be (V, 3), (F, 3), (F, 3, 3), (F, 3, 2), "
                f"(h, w, 3) or (V, 3) as its docstring says, got {getattr(mesh, field).shape} for {mesh.name!r}."
            )
    if F == 0 or V == 0:
        raise InputError(
            f"a mesh needs at least one triangle, {mesh.name!r} has none; point clouds cannot be rendered."
        )
    if not np.isfinite(mesh.vertices).all():
        bad = int((~np.isfinite(mesh.vertices)).any(1).sum())
        raise InputError(
            f"vertices must be finite, {bad} of {V} in {mesh.name!r} are NaN or infinite; repair the mesh."
        )
    if mesh.faces.min() < 0 or mesh.faces.max() >= V:
        raise InputError(f"faces must name vertices 0 to {V - 1}, {mesh.name!r} names {int(mesh.faces.max())}.")
    for field in ("uv", "normals"):
        if (value := getattr(mesh, field)) is not None and not np.isfinite(value).all():
            raise InputError(f"{field} must be finite, some of {mesh.name!r} are not; export the mesh again.")
    if (mesh.uv is None) != (mesh.texture is None):
        raise InputError(f"uv and texture come together, {mesh.name!r} has only one of them.")


def load_mesh(
    path: str | os.PathLike,
    *,
    up: str = "y",
    scale: str | float | int = "fit",
    center: bool = True,
    crease_deg: float | int = 30,
    name: str | None = None,
) -> Mesh:
    """A mesh from .obj (with .mtl and texture), .ply, .stl, .glb, .gltf or .off, all its parts as one.

    up: the file's axis that points up, "x", "-x", "y", "-y", "z" or "-z"; it becomes y, which is up in the image at
        identity. "y" keeps the coordinates.
    scale: "fit" puts the farthest corner at sqrt(3) from the origin, where a die of side 2 has its corners; a number
        multiplies the file's units.
    center: put the middle of the bounding box at the origin, about which the object turns.
    crease_deg: faces that meet at a smaller angle are shaded as one smooth surface; 0 shades every face flat.

    Normals in the file are not used; a texture's transparency is dropped.
    """
    path = Path(path)
    parts = [_Part.of(piece) for piece in _read(path)]
    parts = [part for part in parts if len(part.corners)]
    if not parts:
        raise InputError(f"a mesh needs at least one triangle, {path} has none; point clouds are not drawn.")
    corners = np.concatenate([part.corners for part in parts])
    if not np.isfinite(corners).all():
        bad = int((~np.isfinite(corners)).any((1, 2)).sum())
        raise InputError(
            f"vertices must be finite, {bad} of {len(corners)} triangles in {path} have others; repair it."
        )
    corners = corners @ _UP[_one_of("up", up, _UP)].T
    low, high = corners.min((0, 1)), corners.max((0, 1))
    if center:
        corners = corners - (low + high) / 2
    reach = float(np.sqrt((corners * corners).sum(-1)).max())
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=-1)
    keep = area > 1e-14 * float(((high - low) ** 2).sum())  # a triangle without area is never seen
    if not keep.any():
        raise InputError(f"triangles must have an area, all {len(corners)} in {path} have none; repair the mesh.")
    if scale != "fit" and not (isinstance(scale, (int, float)) and 0 < scale < float("inf")):
        raise InputError(f"scale must be 'fit' or a positive number, got {scale!r}.")
    corners = corners[keep] * (FIT_RADIUS / reach if scale == "fit" else float(scale))
    vertices, faces = _merge(corners)
    return Mesh(
        vertices=vertices,
        faces=faces,
        normals=crease_normals(vertices, faces, crease_deg),
        **{k: v if k == "texture" or v is None else v[keep] for k, v in _paint(parts).items()},
        name=name or path.stem,
    )


_UP = {  # rotations that take the axis to y
    "x": np.array([(0, -1, 0), (1, 0, 0), (0, 0, 1)]),
    "y": np.eye(3, dtype=int),
    "z": np.array([(1, 0, 0), (0, 0, 1), (0, -1, 0)]),
    "-x": np.array([(0, 1, 0), (-1, 0, 0), (0, 0, 1)]),
    "-y": np.diag([1, -1, -1]),
    "-z": np.array([(1, 0, 0), (0, 0, -1), (0, 1, 0)]),
}
FORMATS = (".obj", ".ply", ".stl", ".glb", ".gltf", ".off")


def _one_of(what: str, value: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise InputError(f"{what} must be one of {', '.join(choices)}, got {value!r}.")
    return value


def _read(path: Path) -> list[Any]:
    """The file's parts as trimesh objects, moved to their places."""
    import trimesh  # here: most runs draw solids, and it takes its time to import

    if not path.is_file():
        raise InputError(f"{path} is not there, or no file; meshes are {', '.join(FORMATS)} files.")
    _one_of(f"the extension of {path.name}", path.suffix.lower(), FORMATS)
    try:
        for kind, file in _references(path):
            if not file.is_file():
                raise InputError(f"{path} names the {kind} {file}, which is not there; put it there, or edit the name.")
            if kind == "texture":
                _check_image(path, file)
        scene = trimesh.load_scene(path, process=False)
        return [piece for piece in scene.dump() if isinstance(piece, trimesh.Trimesh)]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # trimesh raises whatever its parsers meet
        why = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise InputError(
            f"{path} cannot be read as {path.suffix} ({why}); export it again, or in another format."
        ) from error


def _check_image(path: Path, file: Path) -> None:
    from PIL import Image

    try:
        with Image.open(file) as image:
            image.verify()
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} names the texture {file}, which is no image; save it again as .png.") from error


def _references(path: Path) -> Iterator[tuple[str, Path]]:
    """Files that a mesh file names; trimesh passes over missing ones in silence."""
    suffix = path.suffix.lower()
    if suffix == ".obj":
        with path.open(encoding="utf-8", errors="replace") as lines:
            named = {line.split(maxsplit=1)[1].strip() for line in lines if line.startswith("mtllib ")}
        for library in sorted(named):
            yield "material file", path.parent / library
            for line in (path.parent / library).read_text("utf-8", errors="replace").splitlines():
                if line.strip().lower().startswith("map_kd "):
                    yield "texture", path.parent / line.strip()[7:].strip()
    elif suffix == ".gltf":
        tree = json.loads(path.read_text("utf-8"))
        for kind, key in (("buffer", "buffers"), ("texture", "images")):
            for entry in tree.get(key, []):
                if not entry.get("uri", "data:").startswith("data:"):
                    yield kind, path.parent / unquote(entry["uri"])
    elif suffix == ".ply":
        with path.open("rb") as lines:
            for raw in lines:
                line = raw.decode("utf-8", errors="replace").strip()
                if line.lower().startswith("comment texturefile "):
                    yield "texture", path.parent / line[20:].strip()
                if line == "end_header" or len(raw) > 4096:
                    return


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Triangles of one material: an image with uv, colours of the corners, or one colour, if any."""

    corners: Float[np.ndarray, "F 3 3"]
    uv: Float[np.ndarray, "F 3 2"] | None = None
    image: UInt8[np.ndarray, "h w 3"] | None = None
    colours: UInt8[np.ndarray, "F 3 3"] | None = None

    @classmethod
    def of(cls, piece: Any) -> "_Part":
        faces, visual = np.asarray(piece.faces), piece.visual
        corners = np.asarray(piece.vertices, float)[faces].reshape(-1, 3, 3)
        if visual.kind in {"vertex", "face"}:
            rgb = np.asarray(visual.vertex_colors)[faces] if visual.kind == "vertex" else visual.face_colors[:, None]
            rgb = np.broadcast_to(np.asarray(rgb, np.uint8)[..., :3], (len(faces), 3, 3))
            return cls(corners=corners, colours=np.ascontiguousarray(rgb))
        material = getattr(visual, "material", None)
        if material is None:
            return cls(corners=corners)
        image = getattr(material, "image", None) or getattr(material, "baseColorTexture", None)
        factor = getattr(material, "baseColorFactor", None)
        if image is not None and image.size == (2, 2) and not getattr(material, "name", None):
            return cls(corners=corners)  # what trimesh puts where a file has uv but no material
        if image is not None and visual.uv is not None:
            pixels = np.asarray(image.convert("RGB"), np.uint8)
            if factor is not None:
                pixels = np.rint(pixels * (np.asarray(factor, float)[:3] / 255)).astype(np.uint8)
            return cls(corners=corners, uv=np.asarray(visual.uv, np.float32)[faces], image=pixels)
        rgb = np.asarray(material.main_color if factor is None else factor, np.uint8)[:3]
        return cls(corners=corners, colours=np.ascontiguousarray(np.broadcast_to(rgb, (len(faces), 3, 3))))


def _paint(parts: list[_Part]) -> dict[str, np.ndarray | None]:
    """uv and texture, or colours, of all parts together."""
    if all(part.image is None for part in parts):
        if all(part.colours is None for part in parts):
            return {}
        return {"colours": np.concatenate([_colours(part) for part in parts])}
    images: list[np.ndarray] = []
    uvs: list[np.ndarray] = []
    for part in parts:
        if part.image is None:  # its mean colour as a texture; parts of one colour keep it
            images.append(np.full((4, 4, 3), _colours(part).mean((0, 1)).round(), np.uint8))
            uvs.append(np.full((len(part.corners), 3, 2), 0.5, np.float32))
        else:
            assert part.uv is not None
            images.append(part.image)
            uvs.append(part.uv)
    if len({image.tobytes() for image in images}) > 1:
        return _atlas(images, uvs)
    return {"uv": np.concatenate(uvs), "texture": images[0]}


def _colours(part: _Part) -> UInt8[np.ndarray, "F 3 3"]:
    return np.full(part.corners.shape, GREY, np.uint8) if part.colours is None else part.colours


def _atlas(images: list[np.ndarray], uvs: list[np.ndarray], border: int = 8) -> dict[str, np.ndarray | None]:
    """Several textures above one another in one, each with a border so that neighbours do not bleed into it.

    A triangle may repeat its texture up to 4 times either way; where it would more often, it is squeezed.
    """
    cells, placed = [], []
    for image, uv in zip(images, uvs, strict=True):
        uv = uv - np.floor(uv.min(1, keepdims=True))
        repeat = np.clip(np.ceil(uv.max((0, 1))), 1, 4)
        placed.append((uv / np.maximum(uv.max(1, keepdims=True) / repeat, 1)) / repeat)
        tiled = np.tile(image, (int(repeat[1]), int(repeat[0]), 1))
        cells.append(np.pad(tiled, ((border, border), (border, border), (0, 0)), mode="edge"))
    height, width = sum(cell.shape[0] for cell in cells), max(cell.shape[1] for cell in cells)
    texture, row = np.zeros((height, width, 3), np.uint8), 0
    for cell, uv in zip(cells, placed, strict=True):
        h, w = cell.shape[:2]
        texture[row : row + h, :w] = cell
        uv[..., 0] = (border + uv[..., 0] * (w - 2 * border)) / width
        uv[..., 1] = 1 - (row + border + (1 - uv[..., 1]) * (h - 2 * border)) / height
        row += h
    return {"uv": np.concatenate(placed), "texture": texture}


def _merge(corners: Float[np.ndarray, "F 3 3"]) -> tuple[Float[np.ndarray, "V 3"], Integer[np.ndarray, "F 3"]]:
    """Corners at the same place become one vertex."""
    points = np.ascontiguousarray(corners.reshape(-1, 3)) + 0.0  # -0 becomes 0
    bits = points.view(np.uint64)
    with np.errstate(over="ignore"):  # 64-bit hashes: sorting numbers is many times faster than sorting rows
        keys = np.zeros(len(points), np.uint64)
        for k in range(3):
            keys = (keys ^ bits[:, k]) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> np.uint64(29)
    _, first, faces = np.unique(keys, return_index=True, return_inverse=True)
    return points[first], faces.reshape(-1, 3).astype(np.int32)


def crease_normals(
    vertices: Float[np.ndarray, "V 3"], faces: Integer[np.ndarray, "F 3"], crease_deg: float | int = 30
) -> Float[np.ndarray, "F 3 3"] | None:
    """Normals of the corners: equal for neighbours that meet at less than the crease angle; None if all are flat."""
    P = vertices[faces]
    flat = np.cross(P[:, 1] - P[:, 0], P[:, 2] - P[:, 0])
    flat /= np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), 1e-300)
    # Half-edges k run from corner k to k + 1; the two with the same ends in either order are neighbours.
    F = len(faces)
    start, stop = np.arange(3 * F), np.arange(3 * F).reshape(F, 3)[:, [1, 2, 0]].ravel()
    a, b = faces.ravel().astype(np.int64), faces[:, [1, 2, 0]].ravel().astype(np.int64)
    key = np.minimum(a, b) * len(vertices) + np.maximum(a, b)
    order = np.argsort(key, kind="stable")
    same = key[order[1:]] == key[order[:-1]]
    one, two = order[:-1][same], order[1:][same]
    smooth = (flat[one // 3] * flat[two // 3]).sum(-1) > np.cos(np.radians(crease_deg))
    one, two = one[smooth], two[smooth]
    if crease_deg <= 0 or not ((flat[one // 3] * flat[two // 3]).sum(-1) < 1 - 1e-9).any():
        return None
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    turned = a[one] != a[two]  # neighbours that agree on the outside run along their edge in opposite ways
    rows = np.concatenate([start[one], stop[one]])
    columns = np.concatenate([np.where(turned, stop[two], start[two]), np.where(turned, start[two], stop[two])])
    links = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(3 * F, 3 * F))
    groups, group = connected_components(links, directed=False)
    edges = P[:, [1, 2, 0]] - P
    edges /= np.maximum(np.linalg.norm(edges, axis=-1, keepdims=True), 1e-300)
    angle = np.arccos(np.clip(-(edges * edges[:, [2, 0, 1]]).sum(-1), -1, 1)).ravel()  # weights, of the corners
    weighted = angle[:, None] * flat.repeat(3, axis=0)
    total = np.stack([np.bincount(group, weighted[:, k], groups) for k in range(3)], -1)[group].reshape(F, 3, 3)
    total /= np.maximum(np.linalg.norm(total, axis=-1, keepdims=True), 1e-300)
    astray = (total * flat[:, None]).sum(-1, keepdims=True) < 0.1
    return np.where(astray, flat[:, None], total).astype(np.float32)
