"""Pages in Chromium: an open page, and all that went wrong on it."""

import os
import shutil
import time
from collections.abc import Callable
from typing import Any

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ["--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
TOUCH = {"viewport": PHONE, "has_touch": True, "is_mobile": True}


class Visit:
    """An open page; on leaving it, nothing may have gone wrong."""

    def __init__(self, browser: Any, address: str, **options: Any):
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        own = ("file:", "data:", "blob:", address)
        self.page.on("request", lambda r: None if r.url.startswith(own) else self.troubles.append(r.url))
        self.page.goto(address)

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.context.close()
        assert kind is not None or self.troubles == []

    def says(self, code: str, *arguments: Any) -> Any:
        return self.page.evaluate(code, *arguments)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def width(self) -> int:
        return self.says("document.documentElement.scrollWidth")

    def settle(self) -> None:
        """Wait for two frames: what was asked to be drawn is drawn."""
        self.says("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def until(self, true: Callable[[], Any], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "the page did not get there in time"
            time.sleep(0.05)
