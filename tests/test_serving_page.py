"""The service's page, driven in Chromium where there is one."""

import base64
import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import uvicorn
from PIL import Image
from services import SIZE, encoded, picture, tiny_model

from aquamam.rendering.known import known_object
from aquamam.serving.app import create_app
from aquamam.serving.limits import Limits

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ["--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


class Visit:
    """An open page of a running service, and all that went wrong on it."""

    def __init__(self, browser: Any, address: str, **options: Any):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        self.page.goto(address)
        self.until(lambda: self.says("Aquamam.live.answers") > 0)

    def says(self, code: str) -> Any:
        return self.page.evaluate(code)

    def until(self, true: Callable[[], Any], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "the page did not get there in time"
            time.sleep(0.05)

    def after(self, action: Callable[[], Any]) -> None:
        """Do something, and wait for the posterior that it causes."""
        before = self.says("Aquamam.live.answers")
        action()
        self.until(lambda: self.says("Aquamam.live.answers") > before)

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: Any) -> None:
        self.context.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(create_app({"tiny": tiny_model()}, Limits(seconds=60)), port=0, log_config=None)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or None where there is none: then tests/test_serving.py has checked what can be checked without."""
    if CHROMIUM is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def test_turning_the_object_brings_new_posteriors(browser, address):
    if browser is None:
        return
    with Visit(browser, address, viewport={"width": 860, "height": 520}) as visit:
        box = visit.page.locator("#source").bounding_box()
        before = visit.says("Aquamam.live.sent.q")

        def drag() -> None:
            visit.page.mouse.move(box["x"] + 20, box["y"] + 20)
            visit.page.mouse.down()
            visit.page.mouse.move(box["x"] + 90, box["y"] + 60, steps=3)
            visit.page.mouse.up()

        drag()
        visit.until(lambda: abs(np.dot(visit.says("Aquamam.live.sent.q"), before)) < 0.99)
        visit.until(lambda: visit.says("Aquamam.live.sent.detail.samples") == 800)  # at rest it asks for more
        assert visit.says("Aquamam.live.ball.points.source.filter((s) => s === 1).length") == 800
        visit.page.locator("#source").focus()
        before = visit.says("Aquamam.live.sent.q")
        visit.page.keyboard.press("ArrowLeft")
        visit.until(lambda: visit.says("Aquamam.live.sent.q") != before)
        # what is sent is what `aquamam render` draws
        sent = visit.says("Aquamam.live.photograph.toDataURL()").partition(",")[2]
        known = known_object(tiny_model())
        assert known is not None
        want = known.picture(visit.says("Aquamam.live.sent.q"), SIZE).astype(float)
        got = np.asarray(Image.open(io.BytesIO(base64.b64decode(sent))).convert("RGB")).astype(float)
        assert got.shape == want.shape
        assert np.abs(got - want).mean() < 6
        assert visit.troubles == []


def test_dropped_images_modes_points_and_the_threshold(browser, address, tmp_path):
    if browser is None:
        return
    (tmp_path / "mine.png").write_bytes(encoded(picture(3, (40, 30))))
    (tmp_path / "bad.png").write_bytes(b"nonsense")
    with Visit(browser, address, viewport={"width": 860, "height": 520}) as visit:
        page = visit.page
        blob = base64.b64encode((tmp_path / "mine.png").read_bytes()).decode()
        drop = f"""() => {{
          const bytes = Uint8Array.from(atob("{blob}"), (c) => c.charCodeAt(0)), carried = new DataTransfer();
          carried.items.add(new File([bytes], "mine.png", {{ type: "image/png" }}));
          for (const name of ["dragenter", "dragover", "drop"])
            document.body.dispatchEvent(new DragEvent(name, {{ dataTransfer: carried, bubbles: true, cancelable: true }}));
        }}"""
        visit.after(lambda: page.evaluate(drop))
        visit.until(lambda: visit.says("Aquamam.live.sent.kind") == "file")
        assert page.inner_text("#source-caption") == "mine.png"
        assert not page.is_visible("#drop")
        assert visit.says("Aquamam.live.ball.points.source.includes(0)") is False  # nobody knows the truth of a file
        visit.until(lambda: visit.says("Aquamam.live.sent.detail.samples") == 800)
        page.locator("#modes button").first.click()
        assert page.inner_text("#pose-caption").startswith("mode 1")
        assert page.locator("#modes button").first.get_attribute("aria-pressed") == "true"
        page.locator("#ball canvas").focus()
        page.keyboard.press(".")
        assert page.inner_text("#pose-caption") in ("drawn from the posterior", "uniform rotation") or "sample of mode" in page.inner_text("#pose-caption")  # fmt: skip
        shown = visit.says("Aquamam.live.ball.countShown()")
        page.locator("#threshold").focus()
        page.keyboard.press("End")
        assert visit.says("Aquamam.live.ball.countShown()") < shown
        assert visit.troubles == []
        page.set_input_files("#file", tmp_path / "bad.png")
        visit.until(lambda: page.is_visible("#problem"))
        assert "known kind" in page.inner_text("#problem")
        visit.after(lambda: page.click("#turn"))
        assert not page.is_visible("#problem")


def test_the_page_fits_a_phone(browser, address):
    if browser is None:
        return
    with Visit(browser, address, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as visit:
        visit.after(lambda: visit.page.tap("#random"))
        assert visit.says("document.documentElement.scrollWidth <= innerWidth")
        for button in visit.page.locator(".actions button:visible").all():
            assert button.bounding_box()["height"] >= 40
        assert visit.troubles == []
