"""The page of a posterior: its text, and what it does in Chromium."""

import base64
import io
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from binghams import cylinder, four_fives
from browsers import PHONE, TOUCH, Visit
from PIL import Image

from aquamam.geometry.rotations import quat_to_rotvec
from aquamam.pages.page import asset, page
from aquamam.pages.posterior import object_data, page_data, posterior_page, write_page
from aquamam.plotting import KnownObject, make_cloud
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid

CAMERA = "Aquamam.page.ball.camera.position.toArray()"


def known(name: str) -> KnownObject:
    return KnownObject(name=name, mesh=solid(name).mesh, settings=RenderSettings())


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    cloud = make_cloud(four_fives(), truth=[0.0, 0.0, 0.0, 1.0], generator=torch.Generator().manual_seed(0))
    die = known("die")
    return page_data(cloud, image=Image.fromarray(die.picture([0, 0, 0, 1], 128)), known=die, title="five.png")


@pytest.fixture(scope="module")
def address(data, tmp_path_factory) -> str:
    return write_page(tmp_path_factory.mktemp("page") / "posterior.html", data).as_uri()


def test_the_page_is_one_file_that_asks_for_nothing_and_reads_well(data):
    text = posterior_page(data)
    own = text.replace(asset("three.min.js"), "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", own)
    assert "@import" not in text
    assert "{{" not in own
    assert text.count("<script") == text.count("</script>") == 2
    for part in (
        "default-src 'none'",  # the browser is told to refuse any request
        "Permission is hereby granted",  # three.js comes with its licence
        '<html lang="en">',
        'name="viewport"',
        '<label class="slider" for="threshold">',
        'alt="The input image"',
        "tabIndex = 0",
        "prefers-color-scheme: dark",
        "prefers-reduced-motion",
    ):
        assert part in text


def test_the_data_come_back_out_of_the_page_and_infinity_is_null(data):
    embedded = r'<script type="application/json" id="data">(.*?)</script>'
    assert json.loads(re.search(embedded, posterior_page(data), re.DOTALL)[1]) == data
    assert len(data["answer"]["points"]["source"]) == 1000
    assert len(data["answer"]["modes"]) == 4
    assert re.search(embedded, page("t", "", styles=[], data={"x": -np.inf}))[1] == '{"x":null}'


def test_a_hostile_title_stays_text(data):
    title = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    text = posterior_page({**data, "title": title, "footer": title})
    assert "<img src=x" not in text
    assert text.count("<script") == 2


class Page(Visit):
    """The page of a posterior when all of it is there."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.says("Aquamam.page.ready")
        self.settle()

    def place_of(self, index: int) -> list[float]:
        """Where a point stands on the screen."""
        code = """(i) => {
          const b = Aquamam.page.ball, r = b.canvas.getBoundingClientRect();
          const at = new THREE.Vector3().fromArray(b.positions, 3 * i).project(b.camera);
          return [r.left + (at.x + 1) / 2 * b.width, r.top + (1 - at.y) / 2 * b.height];
        }"""
        return self.says(code, index)

    def poses(self, q: list[float]) -> bool:
        """Whether the object is shown under a rotation."""
        return abs(float(np.dot(self.says("Aquamam.page.pose.q"), q))) > 1 - 1e-4

    def ball_box(self) -> dict[str, float]:
        return self.page.locator("#ball canvas").bounding_box()


def test_hover_click_modes_and_threshold_work_with_a_mouse(browser, data, address):
    answer, loner = data["answer"], lonely_point(data)
    points, modes = answer["points"], answer["modes"]
    with Page(browser, address) as visit:
        assert "4 separate rotations" in visit.text("#verdict")
        assert visit.poses(answer["quaternion_xyzw"])
        visit.page.mouse.move(*visit.place_of(loner))  # hover: the rotation and its density
        assert f"ln p = {points['log_density'][loner]:.2f}".replace("-", "−") in visit.text("#tip")
        assert "about" in visit.text("#tip")
        visit.page.mouse.click(*visit.place_of(loner))  # click: the object in that pose
        assert visit.poses(points["quaternions_xyzw"][loner])
        assert "uniform rotation" in visit.text("#pose-caption")
        visit.page.click("#modes button >> nth=2")  # a mode: its pose, and it comes to the front
        assert visit.poses(modes[2]["quaternion_xyzw"])
        assert visit.page.get_attribute("#modes button >> nth=2", "aria-pressed") == "true"
        visit.page.wait_for_function(
            """(q) => {
              const to = new THREE.Vector3(...Aquamam.rotationVector(q)).normalize();
              return Aquamam.page.ball.camera.position.clone().normalize().dot(to) > 0.75;
            }""",
            arg=modes[2]["quaternion_xyzw"],
        )
        assert visit.text("#count").startswith("1,000 of 1,000")
        before = visit.page.screenshot(clip=visit.ball_box())
        slide = "(v) => { const s = Aquamam.$('threshold'); s.value = v; s.dispatchEvent(new Event('input')); }"
        visit.says(slide, 7.5)  # the threshold hides what is unlikely, in the count and in the picture
        visit.settle()
        expected = sum(p >= 7.5 for p in points["log_density"][1:]) + 1  # the truth always stays
        assert visit.text("#count").startswith(f"{expected} of 1,000")
        assert visit.page.screenshot(clip=visit.ball_box()) != before


def test_drag_rotates_the_ball_and_wheel_zooms(browser, address):
    with Page(browser, address) as visit:
        start, box = visit.says(CAMERA), visit.ball_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 4
        visit.page.mouse.move(x, y)
        visit.page.mouse.down()
        visit.page.mouse.move(x + 120, y + 40, steps=4)
        visit.page.mouse.up()
        orbited = visit.says(CAMERA)
        assert np.linalg.norm(np.subtract(orbited, start)) > 1
        assert np.isclose(np.linalg.norm(orbited), np.linalg.norm(start))
        visit.page.mouse.wheel(0, -400)
        visit.settle()
        assert np.linalg.norm(visit.says(CAMERA)) < np.linalg.norm(start) - 0.1


def test_keys_reach_everything(browser, data, address):
    points, modes = data["answer"]["points"], data["answer"]["modes"]
    with Page(browser, address) as visit:
        press = visit.page.keyboard.press
        press("Tab")
        assert visit.says("document.activeElement.tagName") == "CANVAS"
        start = visit.says(CAMERA)
        press("ArrowLeft")
        assert visit.says(CAMERA) != start
        press(".")
        assert visit.poses(points["quaternions_xyzw"][int(np.argmax(points["log_density"]))])
        press("Tab")
        press("Enter")
        assert visit.poses(modes[0]["quaternion_xyzw"])
        for _ in range(4):
            press("Tab")
        assert visit.says("document.activeElement.id") == "threshold"
        press("End")
        assert visit.text("#threshold-value") != "any"
        press("Tab")
        press("Space")
        assert visit.says("Aquamam.page.ball.shown") == [0, 1, 1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_sideways_scrolling_and_takes_touches(browser, data, address, scheme):
    with Page(browser, address, **TOUCH, device_scale_factor=2, color_scheme=scheme) as visit:
        for size in ({"width": 320, "height": 640}, PHONE):
            visit.page.set_viewport_size(size)
            visit.settle()
            assert visit.width() <= size["width"]
        loner = lonely_point(data)
        visit.page.locator("#ball").scroll_into_view_if_needed()
        visit.page.touchscreen.tap(*visit.place_of(loner))
        visit.page.wait_for_function("Aquamam.page.ball.selected >= 0")
        assert visit.poses(data["answer"]["points"]["quaternions_xyzw"][loner])
        background = visit.says("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_browser_draws_objects_as_the_renderer_does(browser, address):
    q = [0.4, -0.3, 0.2, 0.842615]
    draw = """async ([object, q]) => {
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
    }"""
    with Page(browser, address) as visit:
        for name in ("die", "cylinder", "tetX"):
            picture = known(name).picture(q, 128).astype(int)
            png = base64.b64decode(visit.says(draw, [object_data(known(name)), q]).partition(",")[2])
            drawn = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
            away = np.abs(drawn.astype(int) - picture)
            assert away.mean() < 1, name  # grey levels; edges are smoothed a little differently
            assert np.median(away[picture.min(-1) < 250]) <= 1, name  # on the object itself


def test_an_unknown_object_shows_its_axes(browser, tmp_path):
    cloud = make_cloud(cylinder(), samples=50, uniform=10, generator=torch.Generator().manual_seed(0))
    data = page_data(cloud, image=Image.new("RGB", (40, 20), "navy"))
    assert data["object"] is None
    with Page(browser, write_page(tmp_path / "a.html", data).as_uri()) as visit:
        assert "2 curves" in visit.text("#verdict")
        assert "axes" in visit.page.get_attribute("#pose", "aria-label")


def test_without_3d_the_numbers_are_still_there(browser, address):
    context = browser.new_context()
    context.add_init_script("HTMLCanvasElement.prototype.getContext = () => null;")
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(address)
    assert "WebGL is off" in page.inner_text("#ball")
    page.click("#modes button >> nth=1")
    assert "mode 2" in page.inner_text("#pose-caption")
    assert errors == []
    context.close()


def lonely_point(data: dict[str, Any]) -> int:
    """A uniform rotation with no other point near it on the screen, seen along the first camera's direction."""
    points = data["answer"]["points"]
    place = quat_to_rotvec(torch.tensor(points["quaternions_xyzw"], dtype=torch.float64)).numpy()
    sight = np.array([0.45, 0.3, 0.84]) / np.linalg.norm([0.45, 0.3, 0.84])
    right = np.cross([0, 1, 0], sight) / np.linalg.norm(np.cross([0, 1, 0], sight))
    distance = 12.6
    nearer = distance / (distance - place @ sight)
    flat = np.stack([place @ right, place @ np.cross(sight, right)], -1) * nearer[:, None]
    apart = np.linalg.norm(flat[:, None] - flat[None], axis=-1) + 1e9 * np.eye(len(flat))
    return int((apart.min(1) * (np.array(points["source"]) == 2)).argmax())
