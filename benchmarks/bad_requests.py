"""Requests that a service must survive: damaged images, bombs, wrong types, hostile names, broken forms, made-up
paths."""

import base64
import io
import json
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

PATHS = ("/v1/predict", "/v1/sample", "/v1/log_prob", "/v1/posterior")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
NAMES = (
    "../../etc/passwd",
    "/etc/passwd",
    "..\\..\\boot.ini",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    "\x00",
    "tiny\x00",
    "a" * 199,
    "a" * 5000,
    "\U0001f3b2",
    "\ud800",
    "%2e%2e%2f",
    "'; DROP TABLE models; --",
    "{{7*7}}",
    "con",
    ".",
    " ",
)
VALUES = (
    None,
    True,
    -1,
    0,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    10**30,
    10**4000,
    "",
    "x",
    "1e999",
    "NaN",
    [],
    {},
    [[]],
    [None],
    {"a": {"b": []}},
    "\ud800",
    "\x00",
    2**63,
    -(2**63) - 1,
    0.5,
)
ROTATIONS = (
    [[0, 0, 0]],
    [[0, 0, 0, 0]],
    [[0, 0, 0, 1, 0]],
    [[0, 0, 0, float("nan")]],
    [[float("inf"), 0, 0, 1]],
    [[1e200, 0, 0, 0]],
    [0, 0, 0, 1],
    [[[0, 0, 0, 1]]],
    [["0", "0", "0", "w"]],
    [[0, 0, 0, 2]],
    [],
    "identity",
    [[0, 0, 0, 1]] * 20_000,
    [{}],
    [[None] * 4],
)


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A request; `certain` when no right answer to it exists, so that it must be refused."""

    kind: str
    method: str = "POST"
    path: str = "/v1/predict"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    certain: bool = True


def bad_requests(seed: int) -> Iterator[Bad]:
    """Without end; the same seed gives the same requests."""
    random_ = random.Random(seed)
    images = _images()
    makers = [
        _damaged,
        _bomb,
        _not_an_image,
        _wrong_field,
        _wrong_rotations,
        _wrong_name,
        _wrong_json,
        _wrong_form,
        _wrong_type,
        _wrong_place,
    ]
    while True:
        yield random_.choice(makers)(random_, images)


def _images() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    images = {}
    for kind in FORMATS:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format=kind)
        images[kind] = buffer.getvalue()
    return images


def _post(random_: random.Random, kind: str, image: bytes, fields: dict | None = None, certain: bool = True) -> Bad:
    """The image and fields as JSON or as a form."""
    fields = dict(fields or {})
    path = random_.choice(PATHS)
    if path == "/v1/log_prob":
        fields.setdefault("rotations", [[0, 0, 0, 1]])
    if random_.random() < 0.5:
        text = json.dumps({"image": base64.b64encode(image).decode(), **fields})
        return Bad(kind=kind, path=path, headers=JSON, body=text.encode("utf-8", "surrogatepass"), certain=certain)
    parts = [_part("image", image, 'filename="x"')]
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(_part(name, text.encode("utf-8", "surrogatepass")))
    return Bad(kind=kind, path=path, headers=FORM, body=b"".join(parts) + b"--edge--\r\n", certain=certain)


JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=edge"}


def _part(name: str, value: bytes, more: str = "") -> bytes:
    more = f"; {more}" if more else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode("utf-8", "surrogatepass") + value + b"\r\n"


def _damaged(random_: random.Random, images: dict[str, bytes]) -> Bad:
    kind, blob = random_.choice(list(images.items()))
    if random_.random() < 0.4:
        cut = blob[: random_.randrange(len(blob))]
        return _post(random_, f"truncated {kind}", cut, certain=len(cut) < len(blob) // 4)
    damaged = bytearray(blob)
    for _ in range(random_.choice((1, 3, 20))):
        damaged[random_.randrange(len(damaged))] = random_.randrange(256)
    if random_.random() < 0.3:
        at = random_.randrange(len(damaged))
        damaged[at:at] = random_.randbytes(random_.randrange(40))
    return _post(random_, f"damaged {kind}", bytes(damaged), certain=False)


def _bomb(random_: random.Random, images: dict[str, bytes]) -> Bad:
    width, height = random_.choice(
        [(6000, 6000), (30_000, 30_000), (1, 2**31 - 1), (2**31 - 1, 2**31 - 1), (65_535, 65_535), (0, 5)]
    )

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    made = random_.randrange(5)
    if made == 0:
        blob = png + chunk(b"IDAT", zlib.compress(bytes(200_000), 9)) + chunk(b"IEND", b"")
    elif made == 1:  # a text that unpacks without end
        text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(5_000_000), 9))
        blob = images["PNG"][:33] + text + images["PNG"][33:]
        return _post(random_, "bomb in a comment", blob, certain=False)
    elif made == 2:
        blob = b"GIF89a" + struct.pack("<HH", min(width, 65_535), min(height, 65_535)) + images["GIF"][10:]
    elif made == 3:
        blob = f"P6 {width} {height} 255\n".encode() + bytes(1000)
    else:
        blob = images["BMP"][:18] + struct.pack("<ii", width, -height) + images["BMP"][26:]
    certain = made != 2 or min(width, 65_535) * min(height, 65_535) > 10**9  # of a GIF, a long thin one is no bomb
    return _post(random_, "bomb", blob, certain=certain)


def _not_an_image(random_: random.Random, images: dict[str, bytes]) -> Bad:
    blob = random_.choice(
        [
            b"",
            b"\0",
            random_.randbytes(random_.randrange(1, 3000)),
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            b"<svg/>",
            b"PK\x03\x04" + bytes(100),
            b"\x89PNG\r\n\x1a\n",
            b"\xff\xd8\xff",
            b"RIFF\xff\xff\xff\xffWEBP",
            b"II*\0\xff\xff\xff\xff",
            b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
            b"GIF89a",
            b"BM",
            b"P6",
        ]
    )
    return _post(random_, "not an image", blob)


def _wrong_field(random_: random.Random, images: dict[str, bytes]) -> Bad:
    name = random_.choice(
        ["samples", "seed", "strategy", "matrix", "model", "uniform", "image", "surprise", "\ud800", "", "__class__"]
    )
    return _post(random_, f"field {name!r}", images["PNG"], {name: random_.choice(VALUES)}, certain=False)


def _wrong_rotations(random_: random.Random, images: dict[str, bytes]) -> Bad:
    value = random_.choice(ROTATIONS)
    text = json.dumps({"image": base64.b64encode(images["PNG"]).decode(), "rotations": value})
    return Bad(kind="rotations", path="/v1/log_prob", headers=JSON, body=text.encode())


def _wrong_name(random_: random.Random, images: dict[str, bytes]) -> Bad:
    return _post(random_, "name of a model", images["PNG"], {"model": random_.choice(NAMES)})


def _wrong_json(random_: random.Random, images: dict[str, bytes]) -> Bad:
    good = json.dumps({"image": base64.b64encode(images["PNG"]).decode(), "samples": 20}).encode()
    body = random_.choice(
        [
            b"",
            b"null",
            b"[]",
            b"3",
            b'"x"',
            b"{",
            b"{}",
            b"[" * 100_000,
            b'{"a":' * 50_000,
            good[: random_.randrange(len(good))],
            b"\xff\xfe" + good,
            good + good,
            b'{"image": null}',
            b'{"image": ["a"]}',
            b'{"image": "\xff"}',
            b'{"image": "\\ud800"}',
            b'{"image": "data:,"}',
            b'{"image": "' + b"A" * 99_999 + b'"}',
            b'{"samples": ' + b"9" * 6000 + b"}",
        ]
    )
    return Bad(kind="json", path=random_.choice(PATHS), headers=JSON, body=body)


def _wrong_form(random_: random.Random, images: dict[str, bytes]) -> Bad:
    image = _part("image", images["PNG"], 'filename="x"')
    end = b"--edge--\r\n"
    body = random_.choice(
        [
            b"",
            end,
            image[: random_.randrange(len(image))],
            image + image + end,
            _part("image", b"text") + end,
            _part("samples", b"20", 'filename="x"') + image + end,
            _part("samples", b"20") + _part("samples", b"21") + image + end,
            b"--edge\r\n\r\nno disposition\r\n" + end,
            b"--edge\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + image + end,
            b"--edge\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n" + end,
            b"".join(_part(f"f{i}", b"1") for i in range(40)) + image + end,
            random_.randbytes(500),
            b'--edge\r\nContent-Disposition: form-data; name="\xff"\r\n\r\nx\r\n' + image + end,
        ]
    )
    kind = random_.choice(
        [FORM["content-type"]] * 6
        + [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=other",
            "multipart/form-data; boundary=edge; charset=nonsense",
            "multipart/form-data; boundary=" + "e" * 300,
        ]
    )
    return Bad(kind="form", path=random_.choice(PATHS), headers={"content-type": kind}, body=body)


def _wrong_type(random_: random.Random, images: dict[str, bytes]) -> Bad:
    kind = random_.choice(
        [
            "",
            "image/png",
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/xml",
            "a" * 500,
            ";;;",
            "application/json/x",
        ]
    )
    headers = {"content-type": kind} if kind else {}
    return Bad(kind="type", path=random_.choice(PATHS), headers=headers, body=images["PNG"])


def _wrong_place(random_: random.Random, images: dict[str, bytes]) -> Bad:
    method = random_.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "POST"])
    path = random_.choice(
        [
            "/v1/predict",
            "/v1/nothing",
            "/assets/../serving/app.py",
            "/assets/%2e%2e%2fapp.py",
            "/assets/model.safetensors",
            "/objects/%00",
            "/objects/..%2f..",
            "/" + "a" * 3000,
            "/x//y",
            "/%ff",
            "/v1/predict/",
            "/V1/PREDICT",
            "/.env",
            "/objects/" + "%ED%A0%80",
        ]
    )
    return Bad(kind="place", method=method, path=path, body=b"x")
