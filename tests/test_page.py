"""The page of a posterior, driven in Chromium where there is one; its text is checked in any case."""

import base64
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from binghams import cylinder, four_fives
from PIL import Image

from aquamam.pages.page import asset, image_uri
from aquamam.pages.posterior import object_data, page_data, posterior_page, write_page
from aquamam.plotting import KnownObject, make_cloud
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ["--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def known(name: str) -> KnownObject:
    return KnownObject(name=name, mesh=solid(name).mesh, settings=RenderSettings())


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    cloud = make_cloud(four_fives(), truth=[0.0, 0.0, 0.0, 1.0], generator=torch.Generator().manual_seed(0))
    die = known("die")
    return page_data(cloud, image=Image.fromarray(die.picture([0, 0, 0, 1], 128)), known=die, title="five.png")


# --- the text ---------------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_asks_for_nothing(data):
    text = posterior_page(data)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", text.replace(asset("three.min.js"), ""))
    assert "default-src 'none'" in text  # the browser is told to refuse any request
    assert "@import" not in text
    assert "{{" not in text.replace(asset("three.min.js"), "").replace(json.dumps(data), "")
    assert text.count("<script") == text.count("</script>") == 2
    assert "Permission is hereby granted" in text  # three.js comes with its licence


def test_the_data_come_back_out_of_the_page(data):
    text = posterior_page(data)
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1]) == data
    assert len(data["answer"]["points"]["quaternions_xyzw"]) == 1000
    assert len(data["answer"]["modes"]) == 4


def test_a_hostile_title_stays_text(data):
    title = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    text = posterior_page({**data, "title": title, "footer": title})
    assert "<img src=x" not in text
    assert text.count("<script") == 2


def test_everything_is_reachable_and_labelled_without_a_mouse(data):
    text = posterior_page(data)
    assert '<html lang="en">' in text
    assert 'name="viewport"' in text
    assert '<label class="slider" for="threshold">' in text
    assert 'alt="The input image"' in text
    assert "tabIndex = 0" in text
    assert "prefers-color-scheme: dark" in text
    assert "prefers-reduced-motion" in text


def test_a_mesh_travels_whole():
    for name in ("die", "cylinder", "tetX"):
        mesh, sent = solid(name).mesh, object_data(known(name))
        vertices = np.frombuffer(base64.b64decode(sent["vertices"]), "<f4").reshape(-1, 3)
        faces = np.frombuffer(base64.b64decode(sent["faces"]), "<u4").reshape(-1, 3)
        assert np.allclose(vertices[faces], mesh.vertices[mesh.faces], atol=1e-6)
        if mesh.texture is not None:
            texture = Image.open(io.BytesIO(base64.b64decode(sent["texture"].partition(",")[2])))
            assert np.array_equal(np.asarray(texture), mesh.texture)
        if name == "tetX":
            colours = np.frombuffer(base64.b64decode(sent["colours"]), "u1").reshape(-1, 3, 3)
            assert np.array_equal(colours, mesh.colours)


def test_large_images_are_sent_small():
    sent = image_uri(Image.new("RGB", (3000, 1500)), largest=512)
    assert Image.open(io.BytesIO(base64.b64decode(sent.partition(",")[2]))).size == (512, 256)


# --- in the browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or None where there is none: then the tests above have checked what can be checked without."""
    if CHROMIUM is None:
        yield None
        return
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("Chromium is here and playwright is not; try: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """An open page, and all that went wrong on it."""

    def __init__(self, browser: Any, file: Path, **options: Any):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else self.troubles.append(r.url))
        self.page.goto(file.as_uri())
        self.page.evaluate("Aquamam.page.ready")
        self.settle()

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: Any) -> None:
        self.context.close()

    def settle(self) -> None:
        """Wait for two frames: what was asked to be drawn is drawn."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def place_of(self, index: int) -> list[float]:
        """Where a point stands on the screen."""
        return self.page.evaluate(
            """(i) => {
              const b = Aquamam.page.ball, r = b.canvas.getBoundingClientRect();
              const at = new THREE.Vector3().fromArray(b.positions, 3 * i).project(b.camera);
              return [r.left + (at.x + 1) / 2 * b.width, r.top + (1 - at.y) / 2 * b.height];
            }""",
            index,
        )

    def pose(self) -> list[float]:
        return self.page.evaluate("Aquamam.page.pose.q")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)


@pytest.fixture
def file(data, tmp_path) -> Path:
    return write_page(tmp_path / "posterior.html", data)


def same_rotation(p: list[float], q: list[float]) -> bool:
    return abs(float(np.dot(p, q))) > 1 - 1e-4


def test_hover_click_modes_and_threshold_work_with_a_mouse(browser, data, file):
    if browser is None:
        assert "pointermove" in file.read_text()
        return
    with Visit(browser, file, viewport=DESKTOP) as visit:
        assert "4 separate rotations" in visit.text("#verdict")
        assert same_rotation(visit.pose(), data["answer"]["quaternion_xyzw"])
        # hover: the rotation and its density
        loner = lonely_point(data)
        visit.page.mouse.move(*visit.place_of(loner))
        assert f"ln p = {data['answer']['points']['log_density'][loner]:.2f}".replace("-", "−") in visit.text("#tip")
        assert "about" in visit.text("#tip")
        # click: the object in that pose
        visit.page.mouse.click(*visit.place_of(loner))
        assert same_rotation(visit.pose(), data["answer"]["points"]["quaternions_xyzw"][loner])
        assert "uniform rotation" in visit.text("#pose-caption")
        # a mode: its pose, and it comes to the front
        visit.page.click("#modes button >> nth=2")
        assert same_rotation(visit.pose(), data["answer"]["modes"][2]["quaternion_xyzw"])
        assert visit.page.get_attribute("#modes button >> nth=2", "aria-pressed") == "true"
        visit.page.wait_for_function(
            """(q) => {
              const to = new THREE.Vector3(...Aquamam.rotationVector(q)).normalize();
              return Aquamam.page.ball.camera.position.clone().normalize().dot(to) > 0.75;
            }""",
            arg=data["answer"]["modes"][2]["quaternion_xyzw"],
        )
        # the threshold hides what is unlikely, in the count and in the picture
        assert visit.text("#count").startswith("1,000 of 1,000")
        before = visit.page.screenshot(clip=ball_box(visit))
        visit.page.evaluate(
            "(v) => { const s = document.getElementById('threshold'); s.value = v; s.dispatchEvent(new Event('input')); }",
            7.5,
        )
        visit.settle()
        expected = sum(p >= 7.5 for p in data["answer"]["points"]["log_density"][1:]) + 1  # the truth always stays
        assert visit.text("#count").startswith(f"{expected} of 1,000")
        assert visit.page.screenshot(clip=ball_box(visit)) != before
        assert visit.troubles == []


def test_drag_turns_the_ball_and_wheel_zooms(browser, file):
    if browser is None:
        assert "OrbitControls" in file.read_text()
        return
    with Visit(browser, file, viewport=DESKTOP) as visit:
        camera = "Aquamam.page.ball.camera.position.toArray()"
        start, box = visit.page.evaluate(camera), ball_box(visit)
        middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
        visit.page.mouse.move(*middle)
        visit.page.mouse.down()
        visit.page.mouse.move(middle[0] + 120, middle[1] + 40, steps=4)
        visit.page.mouse.up()
        turned = visit.page.evaluate(camera)
        assert np.linalg.norm(np.subtract(turned, start)) > 1
        assert np.isclose(np.linalg.norm(turned), np.linalg.norm(start))
        visit.page.mouse.wheel(0, -400)
        visit.settle()
        assert np.linalg.norm(visit.page.evaluate(camera)) < np.linalg.norm(start) - 0.1
        assert visit.troubles == []


def test_keys_reach_everything(browser, data, file):
    if browser is None:
        assert "ArrowLeft" in file.read_text()
        return
    with Visit(browser, file, viewport=DESKTOP) as visit:
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.tagName") == "CANVAS"
        camera = "Aquamam.page.ball.camera.position.toArray()"
        start = visit.page.evaluate(camera)
        visit.page.keyboard.press("ArrowLeft")
        assert visit.page.evaluate(camera) != start
        visit.page.keyboard.press(".")
        likeliest = int(np.argmax(data["answer"]["points"]["log_density"]))
        assert same_rotation(visit.pose(), data["answer"]["points"]["quaternions_xyzw"][likeliest])
        visit.page.keyboard.press("Tab")
        visit.page.keyboard.press("Enter")
        assert same_rotation(visit.pose(), data["answer"]["modes"][0]["quaternion_xyzw"])
        for _ in range(4):
            visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.id") == "threshold"
        visit.page.keyboard.press("End")
        assert visit.text("#threshold-value") != "any"
        visit.page.keyboard.press("Tab")
        visit.page.keyboard.press("Space")
        assert visit.page.evaluate("Aquamam.page.ball.shown") == [0, 1, 1]
        assert visit.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_sideways_scrolling_and_takes_touches(browser, data, file, scheme):
    if browser is None:
        assert "@media (max-width" in file.read_text()
        return
    options = {
        "viewport": PHONE,
        "has_touch": True,
        "is_mobile": True,
        "device_scale_factor": 2,
        "color_scheme": scheme,
    }
    with Visit(browser, file, **options) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        visit.page.set_viewport_size({"width": 320, "height": 640})
        visit.settle()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 320
        visit.page.set_viewport_size(PHONE)
        visit.settle()
        loner = lonely_point(data)
        visit.page.touchscreen.tap(*visit.place_of(loner))
        visit.page.wait_for_function("Aquamam.page.ball.selected >= 0")
        assert same_rotation(visit.pose(), data["answer"]["points"]["quaternions_xyzw"][loner])
        background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")
        assert visit.troubles == []


def test_the_browser_draws_objects_as_the_renderer_does(browser, file):
    q = [0.4, -0.3, 0.2, 0.842615]
    pictures = {name: known(name).picture(q, 128).astype(int) for name in ("die", "cylinder", "tetX")}
    if browser is None:
        assert all(picture.std() > 1 for picture in pictures.values())
        return
    with Visit(browser, file, viewport=DESKTOP) as visit:
        for name, picture in pictures.items():
            shot = visit.page.evaluate(
                """async ([object, q]) => {
                  const side = 128, host = document.createElement("div");
                  host.style.cssText = `position: fixed; left: 0; top: 0; width: ${side}px; height: ${side}px`;
                  document.body.append(host);
                  const view = new Aquamam.ObjectView(host, object);
                  await view.ready;
                  view.show(q);
                  const flat = Object.assign(document.createElement("canvas"), { width: side, height: side }).getContext("2d");
                  flat.fillStyle = "white";
                  flat.fillRect(0, 0, side, side);
                  flat.imageSmoothingQuality = "high";
                  flat.drawImage(view.canvas, 0, 0, side, side);
                  return flat.canvas.toDataURL("image/png");
                }""",
                [object_data(known(name)), q],
            )
            drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(shot.partition(",")[2]))).convert("RGB"))
            away = np.abs(drawn.astype(int) - picture)
            assert away.mean() < 1, name  # grey levels; edges are smoothed a little differently
            assert np.median(away[picture.min(-1) < 250]) <= 1, name  # on the object itself
        assert visit.troubles == []


def test_an_unknown_object_shows_its_axes(browser, tmp_path):
    cloud = make_cloud(cylinder(), samples=50, uniform=10, generator=torch.Generator().manual_seed(0))
    data = page_data(cloud, image=Image.new("RGB", (40, 20), "navy"), known=None)
    file = write_page(tmp_path / "a.html", data)
    assert data["object"] is None
    if browser is None:
        return
    with Visit(browser, file, viewport=DESKTOP) as visit:
        assert "2 curves" in visit.text("#verdict")
        assert "axes" in visit.page.get_attribute("#pose", "aria-label")
        assert visit.troubles == []


def test_without_3d_the_numbers_are_still_there(browser, file):
    if browser is None:
        assert "WebGL is off" in file.read_text()
        return
    context = browser.new_context(viewport=DESKTOP)
    context.add_init_script("HTMLCanvasElement.prototype.getContext = () => null;")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    assert "WebGL is off" in page.inner_text("#ball")
    page.click("#modes button >> nth=1")
    assert "mode 2" in page.inner_text("#pose-caption")
    assert errors == []
    context.close()


def ball_box(visit: Visit) -> dict[str, float]:
    return visit.page.locator("#ball canvas").bounding_box()


def lonely_point(data: dict[str, Any]) -> int:
    """A uniform rotation with no other point near it on the screen at the start, seen along the first camera's direction."""
    from aquamam.geometry.rotations import quat_to_rotvec

    points = quat_to_rotvec(torch.tensor(data["answer"]["points"]["quaternions_xyzw"], dtype=torch.float64)).numpy()
    sight = np.array([0.45, 0.3, 0.84])
    sight /= np.linalg.norm(sight)
    right = np.cross([0, 1, 0], sight)
    right /= np.linalg.norm(right)
    camera = 12.6
    scale = camera / (camera - points @ sight)
    flat = np.stack([points @ right, points @ np.cross(sight, right)], -1) * scale[:, None]
    apart = np.linalg.norm(flat[:, None] - flat[None], axis=-1) + 1e9 * np.eye(len(flat))
    far_from_others = apart.min(1) * (np.array(data["answer"]["points"]["source"]) == 2)
    return int(far_from_others.argmax())
