"""A service in the test's own process, a tiny model for it, and images to send."""

import asyncio
import base64
import contextlib
import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import networks
import numpy as np
import uvicorn
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from aquamam.network.model import AQuaMaM
from aquamam.serving.app import create_app
from aquamam.serving.gate import Limits

SIZE = 16


def tiny_model(seed: int = 0, **changes: Any) -> AQuaMaM:
    config = {"bins": 24, "layers": 2, "hidden": 24, "octaves": 3, "image_size": SIZE, "stem_blocks": (0, 1)}
    model = networks.tiny_model(2.5, seed, **{**config, **changes})
    model.info = {"data": {"objects": [{"name": "die"}], "settings": {"size": SIZE}}}
    return model


def picture(seed: int = 0, size: tuple[int, int] = (SIZE, SIZE)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def base64_of(blob: bytes) -> str:
    return base64.b64encode(blob).decode()


PNG = encoded(picture())


@contextlib.contextmanager
def listening(models: dict[str, Any]) -> Iterator[str]:
    """The address of a service on a socket of this computer."""
    server = uvicorn.Server(uvicorn.Config(create_app(models, Limits(seconds=60)), port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


class InProcess:
    """Requests straight into the application, without a socket."""

    def __init__(self, models: dict[str, Any] | None = None, token: str = "", **limits: Any):
        slow = {"seconds": 60, **limits}  # as busy machines are
        self.app = create_app(models or {"tiny": tiny_model()}, Limits(**slow), token)
        self.service = self.app.state.service
        self.loop = asyncio.new_event_loop()
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://service")

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def get(self, path: str) -> httpx.Response:
        return self.run(self.client.get(path))

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.run(self.client.post(path, **body))

    def ask(self, path: str, image: bytes = PNG, **fields: Any) -> dict[str, Any]:
        """The answer to a request that must succeed."""
        response = self.post(path, json={"image": base64_of(image), **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def together(self, requests: list[tuple[str, dict[str, Any]]]) -> list[httpx.Response]:
        """Requests (path, JSON) at once."""

        async def all_of_them() -> list[httpx.Response]:
            return list(await asyncio.gather(*(self.client.post(path, json=body) for path, body in requests)))

        return self.run(all_of_them())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's values at /metrics that bear these labels."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: Any) -> None:
        self.run(self.client.aclose())
        self.service.close()
        self.loop.close()
