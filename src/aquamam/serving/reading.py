"""Bytes from anyone to images and numbers: everything that can be wrong with a request is found here."""

import asyncio
import io
from typing import TypeVar

import torch
from PIL import Image, UnidentifiedImageError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from aquamam.errors import InputError
from aquamam.network.images import pil_to_tensor
from aquamam.serving.gate import Limits, Refusal
from aquamam.serving.schemas import Asked

# Formats with decoders that many eyes have seen. (Pillow would also hand PostScript to Ghostscript.)
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")

A = TypeVar("A", bound=Asked)


async def arrived(request: Request, limits: Limits) -> Request:
    """The request with its whole body, if that is not too large and comes in time."""
    left = limits.upload_bytes

    async def receive() -> Message:
        nonlocal left
        message = await request.receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise Refusal(413, f"a request has at most {limits.upload_bytes:,} bytes; scale the image down.")
        return message

    whole = Request(request.scope, receive)
    try:
        body = await asyncio.wait_for(whole.body(), limits.seconds)
    except asyncio.TimeoutError:
        raise Refusal(408, f"a request must arrive within {limits.seconds:g} seconds.") from None
    except ClientDisconnect:
        raise Refusal(400, "the request ended before its body did.") from None
    request.state.facts["bytes_in"] = len(body)
    return whole


async def read_request(request: Request, kind: type[A], limits: Limits) -> A:
    """The fields of a request, from JSON (image in base64) or a form (image as a file)."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if media == "application/json":
            return kind.model_validate_json(await request.body(), context=limits)
        if media == "multipart/form-data":
            return kind.model_validate(await _form(request), context=limits)
    except ValidationError as error:  # the first things that are wrong; what came is not repeated, it may be anything
        found = error.errors(include_url=False, include_context=False, include_input=False)
        parts = [f"{'.'.join(str(p)[:60] for p in e['loc'][:3]) or 'the body'}: {e['msg'][:200]}" for e in found[:3]]
        more = "." if len(found) <= 3 else f"; and {len(found) - 3} more."
        raise Refusal(422, "; ".join(parts) + more) from None
    raise Refusal(415, f"a request is application/json or multipart/form-data, got {media[:100] or 'no type'!r}.")


async def _form(request: Request) -> dict[str, str | bytes]:
    try:
        form = await request.form(max_files=1, max_fields=16, max_part_size=len(await request.body()) + 1)
    except (HTTPException, KeyError, ValueError, AssertionError):
        raise Refusal(422, "the body is not a form as multipart/form-data has it.") from None
    if len(form.multi_items()) != len(form):
        raise Refusal(422, "each field of a form is given once.")
    fields = {name: await value.read() if isinstance(value, UploadFile) else value for name, value in form.items()}
    await form.close()
    return fields


def read_image(asked: Asked, limits: Limits, *, channels: int, size: int) -> torch.Tensor:
    """An uploaded file as the network reads it: uint8 (channels, size, size), cut as the request asks."""
    try:
        with Image.open(io.BytesIO(asked.image), formats=FORMATS) as picture:
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
