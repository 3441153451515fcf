"""The demo on the bundled models."""

import pytest

from aquamam.cli import demo
from aquamam.cli.main import main


def test_the_demo_tells_of_every_view_and_writes_pictures_and_pages(tmp_path, capsys, monkeypatch):
    shown = {}
    monkeypatch.setattr(demo, "sentence", lambda one, told=demo.sentence: shown.setdefault(one.view.name, one) and told(one))
    assert main(["demo", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    for view in demo.VIEWS:
        assert view.caption in told
        assert (tmp_path / f"{view.name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{view.name}.html").stat().st_size > 100_000
    assert shown["clear"].error_deg < 5
    assert "one rotation, known to within" in told
    assert [mode.share for mode in shown["five"].answer.modes] == pytest.approx([0.25] * 4, abs=0.05)
    assert 80 < shown["five"].nearest_gap_deg < 100
    assert "4 modes" in told
    assert "2 curves of rotations" in told
