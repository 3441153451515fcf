"""Triangle meshes: what a renderer needs to know about an object, and how it is read from files."""

import hashlib
import io
import logging
import os
import re
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from jaxtyping import Float, Integer, UInt8
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from aquamam.errors import InputError, require
from aquamam.files import write_bytes

FIT_RADIUS = 3**0.5  # a cube of side 2, the die, just fits; at distance 8 it fills 93 % of the default view
GREY = (130, 134, 140)  # of what brings no colour
FORMATS = (".obj", ".ply", ".stl", ".glb", ".gltf", ".off")
MOST_BYTES = 2_000_000_000  # of a fit's mesh in memory: a few million faces with a large texture
_ARRAYS = {"vertices": np.float64, "faces": np.int32, "normals": np.float32, "uv": np.float32}
_ARRAYS |= {"texture": np.uint8, "colours": np.uint8}


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
        V, F, name = len(self.vertices), len(self.faces), self.name
        h, w = (0, 0) if self.texture is None else np.shape(self.texture)[:2]
        texture = [(h, w, 3)] if h * w else []
        shapes: list[Any] = [[(V, 3)], [(F, 3)], [(F, 3, 3)], [(F, 3, 2)], texture, [(V, 3), (F, 3, 3)]]
        for (field, dtype), allowed in zip(_ARRAYS.items(), shapes, strict=True):
            value = getattr(self, field)
            if value is None:
                continue
            value = np.array(value, dtype=dtype, order="C")  # a copy: the mesh does not change with its source
            value.flags.writeable = False
            object.__setattr__(self, field, value)
            require(value.shape in allowed, f"{field} of {name!r} must have a shape of {allowed}, got {value.shape}.")
            finite = dtype == np.uint8 or bool(np.isfinite(value).all())
            require(finite, f"{field} must be finite, some of {name!r} are not; repair the mesh.")
        require(min(F, V) > 0, f"a mesh needs at least one triangle, {name!r} has none; point clouds are not drawn.")
        if self.faces.min() < 0 or self.faces.max() >= V:
            raise InputError(f"faces must name vertices 0 to {V - 1}, {name!r} names {int(self.faces.max())}.")
        if (self.uv is None) != (self.texture is None):
            raise InputError(f"uv and texture come together, {name!r} has only one of them.")

    def __repr__(self) -> str:
        paint = "texture" if self.texture is not None else "colours" if self.colours is not None else "plain"
        return f"Mesh({self.name!r}, {len(self.vertices)} vertices, {len(self.faces)} faces, {paint})"

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content; the name does not count."""
        digest = hashlib.sha256(b"aquamam mesh 1")
        for field in _ARRAYS:
            value = getattr(self, field)
            digest.update(f"|{field}:".encode())
            if value is not None:
                digest.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
        return digest.hexdigest()

    @cached_property
    def corner_colours(self) -> UInt8[np.ndarray, "F 3 3"] | None:
        return self.colours if self.colours is None or self.colours.ndim == 3 else self.colours[self.faces]

    @property
    def radius(self) -> float:
        """Distance of the farthest corner from the origin, about which the object is rotated."""
        return float(np.linalg.norm(self.vertices, axis=1).max())


def write_mesh(mesh: Mesh, path: Path) -> None:
    """Write a mesh exactly as it is, as an .npz file."""
    arrays = {name: getattr(mesh, name) for name in _ARRAYS if getattr(mesh, name) is not None}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, name=np.array(mesh.name), **arrays)
    write_bytes(path, buffer.getbuffer())


def read_mesh(path: Path) -> Mesh:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            unpacked = sum(member.file_size for member in arrays.zip.infolist())
            if unpacked > MOST_BYTES:
                raise ValueError(f"{unpacked:,} bytes unpacked, at most {MOST_BYTES:,}")
            return Mesh(**{name: arrays[name] for name in _ARRAYS if name in arrays}, name=str(arrays["name"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is no mesh of a fit or is damaged ({_why(error)}); run aquamam fit again.") from error


# --- users' files -----------------------------------------------------------------------------------------------------


def load_mesh(
    path: str | os.PathLike,
    *,
    up: str = "y",
    scale: str | float | int = "fit",
    center: bool = True,
    crease_deg: float | int = 30,
    untextured: bool = False,
) -> Mesh:
    """A mesh from .obj (with .mtl and texture), .ply, .stl, .glb, .gltf or .off, all its parts as one.

    up: the file's axis that points up, "x", "-x", "y", "-y", "z" or "-z"; it becomes y, which is up in the image at
        identity. "y" keeps the coordinates.
    scale: "fit" puts the farthest corner at sqrt(3) from the origin, where a die of side 2 has its corners; a number
        multiplies the file's units.
    center: put the middle of the bounding box at the origin, about which the object is rotated.
    crease_deg: faces that meet at a smaller angle are shaded as one smooth surface; 0 shades every face flat.
    untextured: leave out textures and colours, so that texture files may be missing.

    Normals in the file are not used; a texture's transparency is dropped.
    """
    path = Path(path)
    if scale != "fit" and not (isinstance(scale, (int, float)) and 0 < scale < float("inf")):
        raise InputError(f"scale must be 'fit' or a positive number, got {scale!r}.")
    require(up in _UP, f"up must be one of {', '.join(_UP)}, got {up!r}.")
    parts = [part for piece in _read(path, untextured) if len((part := _part(piece)).corners)]
    require(len(parts) > 0, f"a mesh needs at least one triangle, {path} has none; point clouds are not drawn.")
    corners = np.concatenate([part.corners for part in parts])
    if not np.isfinite(corners).all():
        raise InputError(f"vertices must be finite, some in {path} are NaN or infinite; repair the mesh.")
    corners = corners @ _UP[up].T
    low, high = corners.min((0, 1)), corners.max((0, 1))
    if center:
        corners = corners - (low + high) / 2
    reach = float(np.sqrt((corners * corners).sum(-1)).max())
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=-1)
    keep = area > 1e-14 * float(((high - low) ** 2).sum())  # a triangle without area is never seen
    require(bool(keep.any()), f"triangles must have an area, all {len(corners)} in {path} have none; repair the mesh.")
    vertices, faces = _merge(corners[keep] * (FIT_RADIUS / reach if scale == "fit" else float(scale)))
    return Mesh(
        vertices=vertices,
        faces=faces,
        normals=crease_normals(vertices, faces, crease_deg),
        **{k: v if k == "texture" else v[keep] for k, v in ({} if untextured else _paint(parts)).items()},
        name=path.stem,
    )


_UP = {  # rotations that take the axis to y
    "x": np.array([(0, -1, 0), (1, 0, 0), (0, 0, 1)]),
    "y": np.eye(3, dtype=int),
    "z": np.array([(1, 0, 0), (0, 0, 1), (0, -1, 0)]),
    "-x": np.array([(0, 1, 0), (-1, 0, 0), (0, 0, 1)]),
    "-y": np.diag([1, -1, -1]),
    "-z": np.array([(1, 0, 0), (0, 0, -1), (0, 1, 0)]),
}


def _why(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _read(path: Path, untextured: bool) -> list[Any]:
    """The file's parts as trimesh objects, moved to their places."""
    import trimesh  # here: most runs draw solids, and it takes a second to import

    kind = path.suffix.lower()
    require(path.is_file(), f"{path} is not there, or no file; meshes are {', '.join(FORMATS)} files.")
    if kind not in FORMATS:
        raise InputError(f"the extension of {path.name} must be one of {', '.join(FORMATS)}, got {path.suffix!r}.")
    logging.getLogger("trimesh").setLevel(logging.ERROR)  # what is wrong is told below
    files: Any = _Files(path)
    source = io.BytesIO(path.read_bytes())
    if kind == ".obj":  # trimesh reads no comments after numbers, nor a mark of UTF-8 before the first line
        text = source.read().decode("utf-8-sig", errors="replace")
        source = io.BytesIO(re.sub(r"(?m)^(\s*(?:(?:v|vt|vn|f)\s[^#\n]*)?)#.*$", r"\1", text).encode())
    try:
        scene = trimesh.load_scene(source, kind[1:], files, process=False, skip_materials=untextured)
        pieces = [piece for piece in scene.dump() if isinstance(piece, trimesh.Trimesh)]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # trimesh raises whatever its parsers meet
        raise InputError(f"{path} cannot be read as {kind} ({_why(error)}); export it anew or as .glb.") from error
    if files.wrong:
        raise InputError(files.wrong[0])
    return pieces


class _Files:
    """The files that a mesh file names: where it says, or beside it, as paths of another machine mean nothing here.

    trimesh asks for them, and passes over what is missing or damaged in silence: `wrong` keeps it.
    """

    def __init__(self, path: Path):
        self.path, self.wrong = path, list[str]()

    def get(self, name: str) -> bytes:
        if name == "model.gltf":  # what trimesh looks for in a .gltf file that is none
            raise ValueError("no JSON")
        kind = {".mtl": "material file", ".bin": "buffer"}.get(PureWindowsPath(name).suffix.lower(), "texture")
        places = [self.path.parent / one for one in (name, unquote(name), PureWindowsPath(unquote(name)).name)]
        content = next((place.read_bytes() for place in places if place.is_file()), None)
        told = f"{self.path} names the {kind} {name}, which is"
        if content is None and kind == "material file":
            warnings.warn(f"{told} not there; without it, parts are grey.", stacklevel=2)
            raise FileNotFoundError(name)
        if content is None:
            hint = ", or leave textures out (untextured)" if kind == "texture" else ""
            self.wrong.append(f"{told} not there; put it there{hint}.")
        elif kind == "texture":
            try:
                Image.open(io.BytesIO(content)).verify()
            except (OSError, SyntaxError, ValueError):
                self.wrong.append(f"{told} no image; save it again as .png.")
        if content is None or self.wrong:
            raise InputError(self.wrong[0])
        return content.removeprefix(b"\xef\xbb\xbf")  # a mark of UTF-8

    __getitem__ = get


class _Part(NamedTuple):
    """Triangles of one material: an image with uv, colours of the corners, or neither."""

    corners: Float[np.ndarray, "F 3 3"]
    uv: Float[np.ndarray, "F 3 2"] | None = None
    image: UInt8[np.ndarray, "h w 3"] | None = None
    colours: UInt8[np.ndarray, "F 3 3"] | None = None


def _part(piece: Any) -> _Part:
    """What trimesh read of one part."""
    faces, visual = np.asarray(piece.faces), piece.visual
    corners = np.asarray(piece.vertices, float)[faces].reshape(-1, 3, 3)
    if visual.kind in {"vertex", "face"}:
        rgb = np.asarray(visual.vertex_colors)[faces] if visual.kind == "vertex" else visual.face_colors[:, None]
        return _Part(corners, colours=np.broadcast_to(np.asarray(rgb, np.uint8)[..., :3], corners.shape))
    material = getattr(visual, "material", None)
    image = getattr(material, "image", None) or getattr(material, "baseColorTexture", None)
    factor = getattr(material, "baseColorFactor", None)
    if material is None:
        return _Part(corners)
    if image is not None and image.size == (2, 2) and material.name in (None, "material_0"):
        return _Part(corners)  # trimesh puts such an image where a file has uv but no material
    if image is not None and visual.uv is not None:
        image = image.convert("RGBA") if image.mode == "P" else image  # Pillow warns of palettes with transparency
        pixels = np.asarray(image.convert("RGB"), np.uint8)
        if factor is not None:
            pixels = np.rint(pixels * (np.asarray(factor, float)[:3] / 255)).astype(np.uint8)
        return _Part(corners, uv=np.asarray(visual.uv, np.float32)[faces], image=pixels)
    rgb = np.asarray(material.main_color if factor is None else factor, np.uint8)[:3]
    return _Part(corners, colours=np.broadcast_to(rgb, corners.shape))


def _paint(parts: list[_Part]) -> dict[str, np.ndarray]:
    """uv and texture, or colours, of all parts together."""
    colours = [np.full(p.corners.shape, GREY, np.uint8) if p.colours is None else p.colours for p in parts]
    if all(part.image is None for part in parts):
        return {} if all(part.colours is None for part in parts) else {"colours": np.concatenate(colours)}
    images = [np.full((4, 4, 3), own.mean((0, 1)).round(), np.uint8) for own in colours]  # parts of one colour keep it
    uvs = [np.full((len(part.corners), 3, 2), 0.5, np.float32) for part in parts]
    for k, part in enumerate(parts):
        if part.image is not None and part.uv is not None:
            images[k], uvs[k] = part.image, part.uv
    if len({image.tobytes() for image in images}) > 1:
        return _atlas(images, uvs)
    return {"uv": np.concatenate(uvs), "texture": images[0]}


def _atlas(images: list[np.ndarray], uvs: list[np.ndarray], border: int = 8) -> dict[str, np.ndarray]:
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
