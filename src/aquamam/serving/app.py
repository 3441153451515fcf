"""The service as an ASGI application: routes, the page, and the way of a request from its bytes to its answer."""

import asyncio
import hmac
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from aquamam import __version__
from aquamam.errors import InputError
from aquamam.network.poses import part_of
from aquamam.pages.page import asset, fill, script_json
from aquamam.pages.posterior import SCALE, object_data
from aquamam.rendering.known import known_object
from aquamam.serving import schemas
from aquamam.serving.batcher import Batcher, Job
from aquamam.serving.gate import HEADERS, LOG, RETRY, Limits, Refusal, Reply
from aquamam.serving.reading import arrived, read_image, read_request

ABOUT = (
    "Distributions over 3D rotations given an image. Quaternions are xyzw and take the object to the camera (x right, "
    "y up, z towards the viewer); log densities are natural logarithms with respect to volume pi^2."
)
ROUTES: dict[str, tuple[type[schemas.Asked], type]] = {
    "/v1/predict": (schemas.PredictRequest, schemas.PredictAnswer),
    "/v1/sample": (schemas.SampleRequest, schemas.SampleAnswer),
    "/v1/log_prob": (schemas.LogProbRequest, schemas.LogProbAnswer),
    "/v1/posterior": (schemas.PosteriorRequest, schemas.PosteriorAnswer),
}
STATUSES = {
    404: "no model of that name",
    408: "the request did not arrive in time",
    413: "more bytes or pixels than the limits allow",
    415: "neither JSON nor a form, or no image of a known kind",
    422: "something is missing, out of range or damaged",
    429: "too many requests are waiting",
    503: "no answer in time, or the service is shutting down",
}
MEDIA = {"js": "text/javascript", "css": "text/css"}
ASSETS = ("three.min.js", "ball.js", "object.js", "explorer.js", "box.js", "serve.js", "explorer.css", "serve.css")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PICTURE = '<img id="picture" alt="The image that was sent" hidden>'


class Served:
    """A model under a name."""

    def __init__(self, name: str, model: Any):
        config, cells = model.config, getattr(model, "cells", None)
        if "category" in (getattr(config, "embedding", ""), getattr(config, "encoder", "")):
            raise InputError(f"the service takes models that read images, and {name!r} reads categories.")
        self.name, self.model, self.object = name, model, known_object(model)
        self.input = {"channels": int(config.channels), "size": int(config.image_size)}
        part = part_of(model) if getattr(config, "pose", False) else None
        self.facts = {field: getattr(config, field, None) for field in schemas.ModelFacts.model_fields} | {
            "name": name,
            "kind": model.kind,
            "parameters": model.parameter_count or None,
            "ceiling": cells and round(cells.ceiling, 4),
            "object": self.object and self.object.name,
            "part": part and asdict(part),
        }


class Service:
    """Models, the thread that runs them, the limits, and the metrics."""

    def __init__(self, models: Mapping[str, Any], limits: Limits, token: str):
        if not models:
            raise InputError("the service needs at least one model, got none; try aquamam serve die.")
        self.models = {name: Served(name, model) for name, model in models.items()}
        self.limits, self.token = limits, token
        self.busy = 0  # requests that arrive, are worked on or wait
        self.metrics = CollectorRegistry()  # of its own: a process may hold several services
        here: dict[str, Any] = {"namespace": "aquamam", "registry": self.metrics}
        self.requests = Counter("requests_total", "Answered requests.", ("route", "method", "status"), **here)
        self.latency = Histogram("request_seconds", "From request to answer.", ("route",), **here)
        self.rotations = Counter("rotations_total", "Rotations drawn or asked about.", ("route",), **here)
        self.waited = Histogram("wait_seconds", "From a decoded image to its batch.", **here)
        images, sizes = "Images that went through the network together.", (1, 2, 4, 8, 16, 32, 64)
        self.batcher = Batcher(most=limits.batch, seen=Histogram("batch_images", images, buckets=sizes, **here).observe)
        Gauge("busy_requests", "Requests that are worked on or wait.", **here).set_function(lambda: self.busy)
        self.decoders = ThreadPoolExecutor(2, thread_name_prefix="aquamam-images")

    def warm_up(self) -> None:
        """Run each model once: the first pass of a process sets up much, and nobody should have to wait for it."""
        asked = schemas.PosteriorRequest.model_validate({"image": b"", "samples": 32, "uniform": 1})
        for served in self.models.values():
            channels, size = served.input.values()
            image = torch.full((channels, size, size), 255, dtype=torch.uint8)
            self.batcher.submit(Job(model=served.model, image=image, work=asked.answer)).result()

    def close(self) -> None:
        self.batcher.close()
        self.decoders.shutdown(wait=False, cancel_futures=True)

    def find(self, name: str) -> Served:
        name = name or next(iter(self.models))
        if name not in self.models:
            raise Refusal(404, f"model: there is no model of that name; there are {', '.join(self.models)}.")
        return self.models[name]

    async def answer(self, request: Request, kind: type[schemas.Asked]) -> Reply:
        """The answer to a request, if there are not too many and it does not take too long."""
        limits = self.limits
        if self.busy >= limits.queue:
            raise Refusal(429, f"{limits.queue} requests are waiting already; try again.", RETRY)
        self.busy += 1
        try:
            return await asyncio.wait_for(self.work(await arrived(request, limits), kind), limits.seconds)
        except asyncio.TimeoutError:
            late = f"no answer within {limits.seconds:g} seconds; ask for less, or try again."
            raise Refusal(503, late, RETRY) from None
        except InputError as error:
            raise Refusal(422, str(error)) from None
        finally:
            self.busy -= 1

    async def work(self, request: Request, kind: type[schemas.Asked]) -> Reply:
        """Read, check, decode, queue, wait, answer."""
        asked = await read_request(request, kind, self.limits)
        served, cost = self.find(asked.model), asked.cost(self.limits)
        decode = partial(read_image, asked, self.limits, **served.input)
        image = await asyncio.get_running_loop().run_in_executor(self.decoders, decode)
        job = Job(model=served.model, image=image, cost=cost, work=asked.answer)
        result = await asyncio.wrap_future(self.batcher.submit(job))
        self.waited.observe(job.waited)
        self.rotations.labels(request.url.path).inc(cost)
        request.state.facts.update(model=served.name, batch=job.batch, wait_ms=round(1e3 * job.waited, 1))
        return Reply({"model": served.name, **result})

    async def pass_on(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer in every case, even when the service is at fault, and tell the log and the metrics."""
        begun, name = time.monotonic(), uuid.uuid4().hex[:16]
        request.state.facts = {}  # an endpoint adds what the log shall tell
        try:
            if self.knows(request):
                response = await answer(request)
            else:
                wanted = "this service answers those who send the header Authorization: Bearer TOKEN."
                response = Reply({"detail": wanted}, 401, {"www-authenticate": "Bearer"})
        except Exception:
            LOG.exception("the service is at fault", extra={"facts": {"id": name}})
            response = Reply({"detail": f"the service is at fault; its log tells more of {name}."}, 500)
        response.headers.update({**HEADERS, "x-request-id": name})
        seconds, status = time.monotonic() - begun, response.status_code
        # paths that do not exist share one label, since anyone may invent them
        route = getattr(request.scope.get("route"), "path", "other")
        method = request.method if request.method in ("GET", "HEAD", "POST") else "other"
        self.requests.labels(route, method, status).inc()
        self.latency.labels(route).observe(seconds)
        told = {"id": name, "method": request.method[:20], "path": request.url.path[:200], "status": status}
        told |= {"ms": round(1e3 * seconds, 1), "bytes_out": int(response.headers.get("content-length", 0))}
        told["client"] = request.client.host if request.client else ""
        LOG.info("request", extra={"facts": {**told, **request.state.facts}})
        return response

    def knows(self, request: Request) -> bool:
        """Whether a request shows the token, or asks for what everybody may see."""
        path, told = request.url.path, request.headers.get("authorization", "").encode("utf-8", "replace")
        public = not self.token or path in ("/", "/healthz", "/readyz") or path.startswith("/assets/")
        return public or hmac.compare_digest(told, f"Bearer {self.token}".encode())


def create_app(models: Mapping[str, Any], limits: Limits | None = None, token: str = "") -> FastAPI:
    """The service for models by name; the first is the one that requests mean when they name none.

    token: what callers must show for everything but the page, its scripts and the two questions after the service's
    health.
    """
    service = Service(models, limits or Limits(), token)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    # FastAPI's own pages would load scripts from other hosts
    own: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    app = FastAPI(title="aquamam", version=__version__, description=ABOUT, lifespan=lifespan, **own)
    app.state.service = service
    app.middleware("http")(service.pass_on)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Reply:
        nothing = "there is no such path, or not for this method; /openapi.json lists what there is."
        detail = error.detail if isinstance(error, Refusal) else nothing
        return Reply({"detail": detail}, error.status_code, error.headers)

    _add_routes(app, service)
    _add_page(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    def endpoint(asked: type[schemas.Asked]) -> Any:
        async def answer(request: Request) -> Response:
            return await service.answer(request, asked)

        return answer

    refusals: Any = {status: {"model": schemas.Problem, "description": text} for status, text in STATUSES.items()}
    for path, (asked, answered) in ROUTES.items():
        told: dict[str, Any] = {"summary": asked.__doc__, "openapi_extra": {"requestBody": _body_schema(asked)}}
        app.post(path, name=path, responses={200: {"model": answered}, **refusals}, **told)(endpoint(asked))

    @app.get("/v1/models", responses={200: {"model": schemas.ModelsAnswer}}, summary="Models and limits")
    async def models() -> Response:
        return Reply({"models": [m.facts for m in service.models.values()], "limits": asdict(service.limits)})

    @app.get("/healthz", summary="Whether the service works")
    async def healthz() -> Response:
        status, code = ("closing", 503) if service.batcher.closed else ("ok", 200)
        return Reply({"status": status, "version": __version__}, code)

    @app.get("/readyz", summary="Whether one more request would be answered now")
    async def readyz() -> Response:
        full = service.busy >= service.limits.queue
        status = "closing" if service.batcher.closed else "full" if full else "ready"
        return Reply({"status": status, "models": list(service.models)}, 200 if status == "ready" else 503)

    @app.get("/metrics", summary="Counters in Prometheus' text format", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics), media_type=CONTENT_TYPE_LATEST)


def _body_schema(asked: type[schemas.Asked]) -> dict[str, Any]:
    """A request's body for OpenAPI: the same fields as JSON or as a form."""
    schema = asked.model_json_schema()
    form = {**schema["properties"], "image": {"type": "string", "format": "binary"}}
    if "rotations" in form:
        form["rotations"] = {"type": "string", "description": "JSON: a list of quaternions [x, y, z, w]"}
    kinds = {"application/json": schema, "multipart/form-data": {**schema, "properties": form}}
    return {"required": True, "content": {kind: {"schema": told} for kind, told in kinds.items()}}


def _add_page(app: FastAPI, service: Service) -> None:
    """The page at /, its scripts, and the objects that its models know."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        explorer = fill(asset("explorer.html"), picture=PICTURE, controls=asset("serve-controls.html"))
        data = script_json({"models": [served.facts for served in service.models.values()], **SCALE})
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
