"""The service's page in Chromium."""

import base64

import numpy as np
import pytest
import scenes
from browsers import TOUCH, Visit
from PIL import Image
from services import encoded, listening, picture, tiny_model

SMALL = {"width": 860, "height": 520}


@pytest.fixture(scope="module")
def address():
    with listening({"tiny": tiny_model()}) as address:
        yield address


class Page(Visit):
    """The service's page when the first posterior is there."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.until(lambda: self.says("Aquamam.live.answers") > 0)

    def after(self, action) -> None:
        """Do something, and wait for the posterior that it causes."""
        before = self.says("Aquamam.live.answers")
        action()
        self.until(lambda: self.says("Aquamam.live.answers") > before)

    def rests(self) -> None:
        """Wait for the finer posterior of an object at rest."""
        self.until(lambda: self.says("Aquamam.live.sent.detail.samples") == 800)


def test_rotating_the_object_brings_new_posteriors(browser, address):
    with Page(browser, address, viewport=SMALL) as visit:
        box, mouse = visit.page.locator("#source").bounding_box(), visit.page.mouse
        start = visit.says("Aquamam.live.sent.q")
        mouse.move(box["x"] + 20, box["y"] + 20)
        mouse.down()
        mouse.move(box["x"] + 90, box["y"] + 60, steps=3)
        mouse.up()
        visit.until(lambda: abs(np.dot(visit.says("Aquamam.live.sent.q"), start)) < 0.99)
        visit.rests()
        assert visit.says("Aquamam.live.ball.points.source.filter((s) => s === 1).length") == 800
        visit.page.locator("#source").focus()
        before = visit.says("Aquamam.live.sent.q")
        visit.page.keyboard.press("ArrowLeft")
        visit.until(lambda: visit.says("Aquamam.live.sent.q") != before)


def test_dropped_images_and_modes(browser, address, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"nonsense")
    drop = """(blob) => {
      const bytes = Uint8Array.from(atob(blob), (c) => c.charCodeAt(0)), carried = new DataTransfer();
      carried.items.add(new File([bytes], "mine.png", { type: "image/png" }));
      for (const name of ["dragenter", "dragover", "drop"])
        document.body.dispatchEvent(new DragEvent(name, { dataTransfer: carried, bubbles: true, cancelable: true }));
    }"""
    with Page(browser, address, viewport=SMALL) as visit:
        page = visit.page
        blob = base64.b64encode(encoded(picture(3, (40, 30)))).decode()
        visit.after(lambda: page.evaluate(drop, blob))
        visit.until(lambda: visit.says("Aquamam.live.sent.kind") == "file")
        assert visit.text("#source-caption").startswith("mine.png")
        assert not page.is_visible("#drop")
        assert visit.says("Aquamam.live.ball.points.source.includes(0)") is False  # nobody knows the truth of a file
        visit.rests()
        page.locator("#modes button").first.click()
        assert visit.text("#pose-caption").startswith("mode 1")
        assert visit.troubles == []
        page.set_input_files("#file", tmp_path / "bad.png")
        visit.until(lambda: page.is_visible("#problem"))
        assert "known kind" in visit.text("#problem")
        visit.after(lambda: page.click("#turn"))
        assert not page.is_visible("#problem")
        visit.troubles.clear()  # the browser logs the refusal


def test_the_page_fits_a_phone(browser, address):
    with Page(browser, address, **TOUCH) as visit:
        visit.after(lambda: visit.page.tap("#random"))
        assert visit.says("document.documentElement.scrollWidth <= innerWidth")
        for button in visit.page.locator(".actions button:visible").all():
            assert button.bounding_box()["height"] >= 40


def test_a_box_that_is_drawn_on_a_photograph_is_asked_about_and_its_poses_are_drawn(browser, tmp_path):
    photo = tmp_path / "photo.png"
    Image.fromarray(scenes.picture(np.eye(3), np.array([1.5, -0.8, -20.0]))).save(photo)
    drawn = "document.querySelector('canvas.pen').getContext('2d').getImageData(0, 0, 300, 200).data.some((x) => x > 0)"
    with listening({"die": scenes.pose_model()}) as address, Page(browser, address) as visit:
        page = visit.page
        visit.after(lambda: page.set_input_files("#file", photo))
        assert visit.text("#source-caption") == "photo.png: drag a box around the part"
        assert not page.is_visible("#lens-label")
        place, mouse = page.locator("canvas.pen").bounding_box(), page.mouse

        def drag():
            mouse.move(place["x"] + 0.5 * place["width"], place["y"] + 0.4 * place["height"])
            mouse.down()
            mouse.move(place["x"] + 0.8 * place["width"], place["y"] + 0.8 * place["height"], steps=3)
            mouse.up()

        visit.after(drag)
        visit.until(lambda: visit.says("Aquamam.live.sent.box !== null"))
        assert visit.says("Aquamam.live.sent.box") == pytest.approx([80, 48, 48, 48], abs=1)
        page.fill("#lens", "200,200,79.5,59.5")
        visit.after(lambda: page.press("#lens", "Enter"))
        visit.until(lambda: "The part is at" in visit.text("#place"))
        assert "mm" in visit.text("#place")
        assert visit.says(drawn)
        visit.after(lambda: page.click("#whole"))
        visit.until(lambda: visit.says("Aquamam.live.sent.box") is None)
        assert not page.is_visible("#lens-label")
