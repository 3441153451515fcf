"""What every request passes: limits of size and time, the log, and an answer even when the service is at fault."""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aquamam.config import require_positive
from aquamam.files import finite

LOG = logging.getLogger("aquamam.serving")
HELD_BODIES = 16  # full-size uploads that may be in memory at once
HEADERS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
HEADERS += [(b"cross-origin-resource-policy", b"same-origin")]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """One request must not take the machine from the others."""

    upload_bytes: int = 10_000_000  # of a whole request; more is 413
    pixels: int = 16_777_216  # of an image, 4096 x 4096; more is 413, told from the header before anything is decoded
    rotations: int = 10_000  # drawn or asked about in one request; more is 422
    samples: int = 2_000  # behind shares and modes, whose cost grows with the square; more is 422
    seconds: float | int = 10.0  # from the last byte of a request to its answer; longer is 503
    queue: int = 64  # requests that are worked on or wait; one more is 429
    batch: int = 16  # images that go through the network together

    def __post_init__(self) -> None:
        require_positive(self, *(field.name for field in fields(self)))


class Refusal(HTTPException):
    """A request that is not answered, in one sentence; `retry` is in seconds, where trying again can help."""

    def __init__(self, status: int, sentence: str, *, retry: int | None = None):
        super().__init__(status, sentence, headers={} if retry is None else {"retry-after": str(retry)})


class Reply(Response):
    """JSON in ASCII, whatever the text that is told; numbers that are not finite are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(finite(content), allow_nan=False, separators=(",", ":")).encode("ascii")


def refuse(refusal: HTTPException) -> Reply:
    """The answer to a request that is not served."""
    return Reply({"detail": str(refusal.detail)}, refusal.status_code, headers=dict(refusal.headers or {}))


class Gate:
    """Reads a request's body within the limits, then lets it through; the body is then `scope["state"]["body"]`."""

    def __init__(self, app: ASGIApp, limits: Limits, seen: Callable[[Scope, int, float], None]):
        """seen: told the scope, the status and the seconds of every answer."""
        self.app, self.limits, self.seen = app, limits, seen
        self.held = 0  # bytes of bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, status, sent, body = time.monotonic(), 0, 0, b""
        name = uuid.uuid4().hex[:16]
        facts: dict[str, Any] = {}  # a handler adds what the log shall tell

        async def recorded(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS, (b"x-request-id", name.encode())]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            body = await self._body(scope, receive)
            scope.setdefault("state", {}).update(body=body, facts=facts)
            await self.app(scope, receive, recorded)
        except Refusal as refusal:
            await refuse(refusal)(scope, receive, recorded)
        except Exception:
            LOG.exception("the service is at fault", extra={"facts": {"id": name}})
            if not status:
                fault = Refusal(500, f"the service is at fault; its log tells more of {name}.")
                await refuse(fault)(scope, receive, recorded)
        finally:
            self.held -= len(body)
            seconds = time.monotonic() - begun
            self.seen(scope, status, seconds)
            told = {"id": name, "method": scope["method"][:20], "path": scope["path"][:200], "status": status}
            told |= {"ms": round(1e3 * seconds, 1), "bytes_in": len(body), "bytes_out": sent}
            told["client"] = (scope.get("client") or ("",))[0]
            LOG.info("request", extra={"facts": {**told, **facts}})
        return None

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit():
            self._check(int(length[:20]))
        if scope["method"] in ("GET", "HEAD"):
            return b""
        try:
            return await asyncio.wait_for(self._read(receive), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refusal(408, f"a request must arrive within {self.limits.seconds:g} seconds.") from None

    def _check(self, size: int) -> None:
        most = self.limits.upload_bytes
        if size > most:
            raise Refusal(413, f"a request has at most {most:,} bytes; scale the image down.")
        if self.held > HELD_BODIES * most:
            raise Refusal(503, "too many uploads at once; try again.", retry=1)

    async def _read(self, receive: Receive) -> bytes:
        body, more = bytearray(), True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the request ended before its body did.")
                part, more = message.get("body", b""), message.get("more_body", False)
                body += part
                self.held += len(part)
                self._check(len(body))
        except BaseException:
            self.held -= len(body)
            raise
        return bytes(body)


class JsonLines(logging.Formatter):
    """One JSON object a line: for people with `jq`, and for machines."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
