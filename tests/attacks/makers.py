"""What tries to break in: files of this folder, files that are made here as they would be large, and requests."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from registry import tiny
from services import PNG, base64_of

from aquamam.checkpoints.checkpoint import FORMAT, describe
from aquamam.export.runner import FORMAT as EXPORTED

HERE = Path(__file__).parent
NESTED, KIND = "[" * 100_000, '{"kind": "%s", "config": {}}'


def safetensors(tensors: dict[str, tuple[int, ...]], description: str = "{}", *, length: int | None = None) -> bytes:
    """A checkpoint of zeros; length: what it says its header had."""
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "description": description}}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(end)


def model(changes: dict[str, Any] | None = None, **config: Any) -> Callable[[], bytes]:
    """A small model's checkpoint with another description."""

    def make() -> bytes:
        good = tiny("stem")
        told = describe(good)
        told = {**told, "config": {**told["config"], **config}, **(changes or {})}
        return safetensors({name: tuple(t.shape) for name, t in good.state_dict().items()}, json.dumps(told))

    return make


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A picture that claims this size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def zipped(name: str, content: bytes, claims: int | None = None) -> bytes:
    """An archive of one member that claims this size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
        archive.filelist[0].file_size = len(content) if claims is None else claims
    return buffer.getvalue()


def npy(shape: str, kind: str = "'<f8'") -> bytes:
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def file(name: str) -> Callable[[], bytes]:
    return (HERE / name).read_bytes


# what it is -> the end of its name, which tells the door, and what is in it
FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a pickle named .safetensors": (".safetensors", file("pickle.safetensors")),
    "a page for a checkpoint": (".safetensors", file("page.html")),
    "a header of 100,000 entries": (".safetensors", lambda: safetensors({f"t{i}": (0,) for i in range(100_000)})),
    "a header of 2^63 bytes": (".safetensors", lambda: safetensors({}, length=2**63)),
    "a header of 90 MB": (".safetensors", lambda: struct.pack("<Q", 90_000_000) + b"{" + b" " * 89_999_999),
    "a header without its end": (".safetensors", lambda: safetensors({}, length=10_000_000)),
    "names that climb": (".safetensors", lambda: safetensors({"../../../etc/passwd": (2,)}, KIND % "aquamam")),
    "names in Unicode": (".safetensors", lambda: safetensors({"\u202estart\u0000": (2,)}, KIND % "\U0001f3b2")),
    "a description nested without end": (".safetensors", lambda: safetensors({}, NESTED)),
    "a number of 5,000 digits": (".safetensors", lambda: safetensors({}, '{"kind": ' + "9" * 5_000 + "}")),
    "a description that is a list": (".safetensors", lambda: safetensors({}, "[1, 2]")),
    "a billion bins": (".safetensors", model(bins=10**9)),
    "a million of everything": (".safetensors", model(dim=10**6, hidden=10**6, heads=1)),
    "a million layers": (".safetensors", model(layers=10**6)),
    "a picture of a trillion tokens": (".safetensors", model(image_size=2**19)),
    "bins that are no number": (".safetensors", model(bins=float("nan"))),
    "stages of a word": (".safetensors", model(stem="many", stem_blocks="many")),
    "view classes that are none": (".safetensors", model({"info": {"view_classes": 3}})),
    "symmetries that are none": (".safetensors", model({"info": {"symmetries": {"group": [1]}}})),
    "a calibration that is none": (".safetensors", model({"calibration": [[]]})),
    "temperatures of zero": (".safetensors", model({"calibration": {"temperatures": [0, 0, 0]}})),
    "a pickle named .pt": (".pt", file("pickle.safetensors")),
    "an archive that is no model": (".pt", lambda: zipped("archive/data.pkl", b"\x80\x04" + NESTED.encode())),
    "an export without graphs": (".onnx.json", lambda: json.dumps({"format": EXPORTED, "config": {}}).encode()),
    "an export nested without end": (".onnx.json", NESTED.encode),
    "a drawing with a script": (".png", file("drawing.svg")),
    "a page for an image": (".png", file("page.html")),
    "a program for an image": (".png", file("program.eps")),
    "an archive for an image": (".png", lambda: zipped(".png", PNG)),
    "10 billion pixels": (".png", lambda: png(100_000, 100_000)),
    "pixels that are not there": (".png", lambda: png(4_000, 4_000, zlib.compress(bytes(100)))),
    "a texture outside its folder": (".obj", file("outside.obj")),
    "a buffer outside its folder": (".gltf", file("outside.gltf")),
    "four billion triangles": (".stl", file("endless.stl")),
    "four billion corners": (".ply", file("endless.ply")),
    "an archive of 3 GB": (".npz", lambda: zipped("vertices.npy", bytes(100), 3 * 10**9)),
    "an array of a trillion numbers": (".npz", lambda: zipped("vertices.npy", npy("(1000000000000, 3)"))),
    "an array of objects": (".npz", lambda: zipped("vertices.npy", npy("(1,)", "'|O'") + file("pickle.safetensors")())),
    "no archive": (".npz", lambda: b"PK\x03\x04" + bytes(100)),
    "a billion laughs": (".yaml", file("laughs.yaml")),
    "a program for a camera": (".yaml", file("python.yaml")),
    "a camera nested without end": (".yaml", NESTED.encode),
    "boxes nested without end": (".boxes.json", NESTED.encode),
    "categories that are none": (".boxes.json", lambda: b'{"categories": 3, "annotations": []}'),
}
NAMES = ("../../etc/passwd", "/etc/passwd", "d\u0456e", "die\u202e", "die\x00", "a" * 5_000, "http://127.0.0.1:1/die")


def ask(image: bytes = PNG, **fields: Any) -> dict[str, Any]:
    return {"json": {"image": base64_of(image), **fields}}


# what it is -> the path and the body; without one it is only looked at
JSON = {"content-type": "application/json"}
PICTURES = ("a drawing with a script", "a page for an image", "a program for an image", "10 billion pixels")
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{what}, sent": ("/v1/predict", ask(FILES[what][1]())) for what in PICTURES},
    **{f"a model named {name[:20]!r}": ("/v1/predict", ask(model=name)) for name in NAMES},
    "a form with a drawing": ("/v1/predict", {"files": {"image": ("../../a.png", file("drawing.svg")())}}),
    "two images": ("/v1/predict", {"files": [("image", ("a.png", PNG)), ("image", ("b.png", PNG))]}),
    "an archive, sent": ("/v1/predict", ask(zipped("a.png", PNG))),
    "a body nested without end": ("/v1/predict", {"content": NESTED, "headers": JSON}),
    "a file of the machine": ("/assets/..%2f..%2f..%2fpage.py", {}),
    "an object of the machine": ("/objects/..%2f..%2fetc%2fpasswd", {}),
}
