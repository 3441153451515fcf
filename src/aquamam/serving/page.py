"""The service's page: drop an image or turn the object, and watch the posterior."""

import json
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.pages.page import MOST_FACES, asset, object_data
from aquamam.plotting.style import THEMES
from aquamam.serving.gate import Reply
from aquamam.serving.limits import Refusal

if TYPE_CHECKING:
    from aquamam.serving.app import Service

SCRIPTS = ("three.min.js", "ball.js", "object.js", "serve.js")
STYLES = ("page.css", "serve.css")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def add_page(app: FastAPI, service: "Service") -> None:
    """The page at /, its scripts, and the objects that its models know."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        text = asset("serve.html").replace("{{data}}", _data(service))
        return Response(text, media_type="text/html", headers={"content-security-policy": POLICY})

    @app.get("/assets/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in (*SCRIPTS, *STYLES):
            raise Refusal(404, "there is no such file.")
        media = "text/javascript" if name.endswith(".js") else "text/css"
        return Response(asset(name), media_type=media, headers={"cache-control": "no-cache"})

    @app.get("/objects/{name}", include_in_schema=False)
    async def mesh(name: str, request: Request) -> Response:
        known = service.find(name).object
        if known is None or len(known.mesh.faces) > MOST_FACES:
            raise Refusal(404, "the object of this model is not known.")
        return Reply(object_data(known))


def _data(service: "Service") -> str:
    """What the page needs to begin, safe inside a script element."""
    data: dict[str, Any] = {
        "models": [served.facts() for served in service.models.values()],
        "uniform": LOG_UNIFORM,
        "colours": {
            name: {"density": list(theme.density), "muted": theme.muted, "accent": theme.accent}
            for name, theme in THEMES.items()
        },
    }
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")
