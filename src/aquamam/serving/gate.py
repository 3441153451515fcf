"""What every request passes: size, time, one line in the log, and an answer even when the service itself is at fault."""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aquamam.serving.limits import Limits, Refusal

LOG = logging.getLogger("aquamam.serving")
HELD_BODIES = 16  # full-size uploads that may be in memory at once

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Reply(Response):
    """JSON in ASCII, whatever the text that is told."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def refuse(refusal: Refusal) -> Reply:
    """The answer to a request that is not served."""
    headers = {} if refusal.retry is None else {"retry-after": str(refusal.retry)}
    return Reply({"detail": refusal.sentence}, refusal.status, headers=headers)


class Gate:
    """Reads a request's body within the limits, then lets it through; the body is then `scope["state"]["body"]`."""

    def __init__(self, app: ASGIApp, limits: Limits, seen: Callable[[Scope, int, float], None]):
        """seen: told the scope, the status and the seconds of every answer."""
        self.app = app
        self.limits = limits
        self.seen = seen
        self.held = 0  # bytes of bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, status, sent = time.monotonic(), 0, 0
        name = uuid.uuid4().hex[:16]
        state = scope.setdefault("state", {})
        facts: dict[str, Any] = {}
        state["facts"] = facts  # a handler adds what the log shall tell

        async def recorded(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS, (b"x-request-id", name.encode())]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            await send(message)

        body = b""
        try:
            body = await self._body(scope, receive)
            state["body"] = body
            await self.app(scope, _replay(body, receive), recorded)
        except Refusal as refusal:
            await refuse(refusal)(scope, receive, recorded)
        except Exception:
            LOG.exception("the service is at fault", extra={"facts": {"id": name}})
            if not status:
                await refuse(Refusal(500, f"the service is at fault; its log tells more of {name}."))(
                    scope, receive, recorded
                )
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
        headers = dict(scope["headers"])
        most = self.limits.upload_bytes
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise Refusal(413, f"a request has at most {most:,} bytes; scale the image down.")
        if scope["method"] in ("GET", "HEAD"):
            return b""
        try:
            return await asyncio.wait_for(self._read(receive, most), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refusal(408, f"a request must arrive within {self.limits.seconds:g} seconds.") from None

    async def _read(self, receive: Receive, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the request ended before its body did.")
                part = message.get("body", b"")
                size += len(part)
                self.held += len(part)
                if size > most:
                    raise Refusal(413, f"a request has at most {most:,} bytes; scale the image down.")
                if self.held > HELD_BODIES * most:
                    raise Refusal(503, "too many uploads at once; try again.", retry=1)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
        except BaseException:
            self.held -= size
            raise


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """What the application receives: the body once, then whatever the connection says."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return next_message


class JsonLines(logging.Formatter):
    """One JSON object a line: for people with `jq`, and for machines."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))}
        line["time"] += f".{int(record.msecs):03d}Z"
        line |= {"level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
