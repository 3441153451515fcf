"""The demo on the bundled models."""

import re

from aquamam.cli.demo import VIEWS
from aquamam.cli.main import main


def test_the_demo_tells_of_every_view_and_writes_pictures_and_pages(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    for name, view in VIEWS.items():
        assert view.caption in told
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{name}.html").stat().st_size > 100_000
    assert float(re.search(r"one rotation, known to within .* degrees; (.*) degrees from the truth", told)[1]) < 5
    shares, gap = re.search(r"4 modes \((.*)\), (\d+) degrees apart: the picture leaves a choice", told).groups()
    assert all(20 <= int(share.strip(" %")) <= 30 for share in shares.split(","))
    assert 80 < int(gap) < 100
    assert "2 curves of rotations" in told
