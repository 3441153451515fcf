"""The service's page: drop an image or rotate the object, and watch the posterior."""

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.responses import Response

from aquamam.pages.page import asset, fill, script_json
from aquamam.pages.posterior import SCALE, object_data
from aquamam.serving.gate import Reply
from aquamam.serving.limits import Refusal

if TYPE_CHECKING:
    from aquamam.serving.app import Service

MEDIA = {"js": "text/javascript", "css": "text/css"}
ASSETS = ("three.min.js", "ball.js", "object.js", "explorer.js", "serve.js", "explorer.css", "serve.css")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PICTURE = '<img id="picture" alt="The image that was sent" hidden>'


def add_page(app: FastAPI, service: "Service") -> None:
    """The page at /, its scripts, and the objects that its models know."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        explorer = fill(asset("explorer.html"), picture=PICTURE, controls=asset("serve-controls.html"))
        data = script_json({"models": [served.facts() for served in service.models.values()], **SCALE})
        text = fill(asset("serve.html"), explorer=explorer, data=data)
        return Response(text, media_type="text/html", headers={"content-security-policy": POLICY})

    @app.get("/assets/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in ASSETS:
            raise Refusal(404, "there is no such file.")
        media = MEDIA[name.rpartition(".")[2]]
        return Response(asset(name), media_type=media, headers={"cache-control": "no-cache"})

    @app.get("/objects/{name}", include_in_schema=False)
    async def mesh(name: str) -> Response:
        known = service.find(name).object
        data = None if known is None else object_data(known)
        if data is None:
            raise Refusal(404, "the object of this model is not known.")
        return Reply(data)
