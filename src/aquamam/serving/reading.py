"""Bytes from anyone to images and numbers: everything that can be wrong with a request is found here."""

import base64
import io
import json
from typing import Any, TypeVar

import torch
from PIL import Image, UnidentifiedImageError
from pydantic import ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from aquamam.errors import InputError
from aquamam.network.images import pil_to_tensor
from aquamam.serving.gate import Limits, Refusal
from aquamam.serving.schemas import Asked

# Formats with decoders that many eyes have seen. (Pillow would also hand PostScript to Ghostscript.)
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")

A = TypeVar("A", bound=Asked)


async def read_request(body: bytes, headers: Headers, kind: type[A], limits: Limits) -> tuple[A, bytes]:
    """The fields of a request and the bytes of its image, from JSON (image in base64) or a form (image as a file)."""
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == "application/json":
        fields, image = _from_json(body)
    elif media == "multipart/form-data":
        fields, image = await _from_form(body, headers)
    else:
        raise Refusal(415, f"a request is application/json or multipart/form-data, got {media[:100] or 'no type'!r}.")
    rotations = fields.get("rotations")
    if isinstance(rotations, list) and len(rotations) > limits.rotations:  # before each of them is looked at
        raise Refusal(422, f"rotations: at most {limits.rotations:,} in a request.")
    try:
        return kind.model_validate(fields), image
    except ValidationError as error:  # the first things that are wrong; what came is not repeated, it may be anything
        found = error.errors(include_url=False, include_context=False, include_input=False)
        parts = [f"{'.'.join(str(p)[:60] for p in e['loc'][:3])}: {e['msg'][:200]}" for e in found[:3]]
        more = "." if len(found) <= 3 else f"; and {len(found) - 3} more."
        raise Refusal(422, "; ".join(parts) + more) from None


def _from_json(body: bytes) -> tuple[dict[str, Any], bytes]:
    fields = _json(body, "the body is not JSON.")
    if not isinstance(fields, dict):
        raise Refusal(422, "the body must be a JSON object.")
    text = fields.pop("image", None)
    if not isinstance(text, str):
        raise Refusal(422, "image: a string in base64 is needed.")
    try:
        return fields, base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except ValueError:
        raise Refusal(422, "image: this is not base64.") from None


async def _from_form(body: bytes, headers: Headers) -> tuple[dict[str, Any], bytes]:
    async def stream():
        yield body

    try:
        limits = {"max_files": 1, "max_fields": 16, "max_part_size": len(body) + 1}
        form = await MultiPartParser(headers, stream(), **limits).parse()
    except (MultiPartException, KeyError, ValueError, AssertionError):
        raise Refusal(422, "the body is not a form as multipart/form-data has it.") from None
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name in fields:
            raise Refusal(422, f"{name[:100]}: given twice.")
        if isinstance(value, UploadFile) != (name == "image"):
            raise Refusal(422, f"{name[:100]}: {'a file' if name == 'image' else 'a value, and no file,'} is needed.")
        fields[name] = await value.read() if isinstance(value, UploadFile) else value
    await form.close()
    if "image" not in fields:
        raise Refusal(422, "image: a file is needed.")
    if "rotations" in fields:
        fields["rotations"] = _json(fields["rotations"], "rotations: a JSON list of quaternions is needed.")
    return fields, fields.pop("image")


def _json(text: bytes | str, otherwise: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a number of 5,000 digits, or nested without end
        raise Refusal(422, otherwise) from None


def read_image(blob: bytes, limits: Limits, asked: Asked, *, channels: int, size: int) -> torch.Tensor:
    """An uploaded file as the network reads it: uint8 (channels, size, size), cut as the request asks."""
    try:
        with Image.open(io.BytesIO(blob), formats=FORMATS) as picture:
            if picture.width * picture.height > limits.pixels:
                raise Image.DecompressionBombError
            return pil_to_tensor(asked.cut(picture, size), channels, (size, size))
    except InputError:
        raise
    except UnidentifiedImageError:
        raise Refusal(415, f"image: not a file of a known kind; try {', '.join(FORMATS)}.") from None
    except Image.DecompressionBombError:
        raise Refusal(413, f"image: at most {limits.pixels:,} pixels; scale it down.") from None
    except Exception as error:  # on hostile files decoders raise whatever they happen to
        raise Refusal(422, f"image: cannot be decoded ({type(error).__name__}); it may be damaged.") from None
