"""What every request meets: the limits, how a service refuses and replies, and the lines of its log."""

import json
import logging
import time
from dataclasses import dataclass, fields
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from aquamam.errors import require_positive
from aquamam.files import finite

LOG = logging.getLogger("aquamam.serving")
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
RETRY = {"retry-after": "1"}  # seconds, where trying again can help


@dataclass(frozen=True, kw_only=True)
class Limits:
    """One request must not take the machine from the others."""

    upload_bytes: int = 10_000_000  # of a whole request; more is 413
    pixels: int = 16_777_216  # of an image, 4096 x 4096; more is 413, told from the header before anything is decoded
    rotations: int = 10_000  # drawn or asked about in one request; more is 422
    samples: int = 2_000  # behind shares and modes, whose cost grows with the square; more is 422
    seconds: float | int = 10.0  # from the last byte of a request to its answer; longer is 503
    queue: int = 64  # requests that arrive, are worked on or wait; one more is 429
    batch: int = 16  # images that go through the network together

    def __post_init__(self) -> None:
        require_positive(self, *(field.name for field in fields(self)))


class Refusal(HTTPException):
    """A request that is not answered: its status, one sentence, headers."""


class Reply(Response):
    """JSON in ASCII, whatever the text that is told; numbers that are not finite are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(finite(content), allow_nan=False, separators=(",", ":")).encode("ascii")


class JsonLines(logging.Formatter):
    """One JSON object a line: for people with `jq`, and for machines."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
