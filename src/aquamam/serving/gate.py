"""What every request passes: its limits, the token, the log, and an answer even when the service is at fault."""

import hmac
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

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


def refuse(refusal: HTTPException) -> Reply:
    """The answer to a request that is not served."""
    return Reply({"detail": str(refusal.detail)}, refusal.status_code, headers=dict(refusal.headers or {}))


async def gate(
    request: Request,
    answer: Callable[[Request], Awaitable[Response]],
    seen: Callable[[Scope, int, float], None],
    token: str,
) -> Response:
    """Answer in every case, and tell the log, and `seen` of the scope, the status and the seconds of every answer."""
    begun, name = time.monotonic(), uuid.uuid4().hex[:16]
    request.state.facts = {}  # an endpoint adds what the log shall tell
    try:
        if not token or _shown(request, token):
            response = await answer(request)
        else:
            wanted = "this service answers those who send the header Authorization: Bearer TOKEN."
            response = refuse(Refusal(401, wanted, {"www-authenticate": "Bearer"}))
    except Exception:
        LOG.exception("the service is at fault", extra={"facts": {"id": name}})
        response = refuse(Refusal(500, f"the service is at fault; its log tells more of {name}."))
    response.headers.update({**HEADERS, "x-request-id": name})
    seconds = time.monotonic() - begun
    seen(request.scope, response.status_code, seconds)
    told = {"id": name, "method": request.method[:20], "path": request.url.path[:200], "status": response.status_code}
    told |= {"ms": round(1e3 * seconds, 1), "bytes_out": int(response.headers.get("content-length", 0))}
    told["client"] = request.client.host if request.client else ""
    LOG.info("request", extra={"facts": {**told, **request.state.facts}})
    return response


def _shown(request: Request, token: str) -> bool:
    """Whether a request shows the token, or asks for what everybody may see."""
    path = request.url.path
    if path in ("/", "/healthz", "/readyz") or path.startswith("/assets/"):
        return True
    told = request.headers.get("authorization", "").encode("utf-8", "replace")
    return hmac.compare_digest(told, f"Bearer {token}".encode())


class JsonLines(logging.Formatter):
    """One JSON object a line: for people with `jq`, and for machines."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
