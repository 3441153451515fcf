"""The demo on the bundled models."""

import pytest

from aquamam.checkpoints.checkpoint import bundled
from aquamam.cli import showcase
from aquamam.cli.main import main


def test_demo_shows_every_bundled_model_and_writes_pictures_and_pages(tmp_path, capsys):
    assert "die" in bundled()
    assert main(["demo", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    for view in showcase.available():
        assert view.caption in told
        assert (tmp_path / f"{view.name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{view.name}.html").stat().st_size > 100_000


def test_the_clear_view_has_one_answer_and_the_five_several(tmp_path):
    shown = {one.view.name: one for one in showcase.show(tmp_path)}
    assert shown["clear"].error_deg < 5
    assert showcase.sentence(shown["clear"]).startswith("one rotation")
    assert [mode.share for mode in shown["five"].answer.modes] == pytest.approx([0.25] * 4, abs=0.05)
    assert 80 < shown["five"].nearest_gap_deg < 100
    assert "the picture leaves a choice" in showcase.sentence(shown["five"])
