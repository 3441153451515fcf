"""Posteriors show themselves in notebooks, and the tour does what it says."""

import re
from pathlib import Path

import pytest
import torch
from registry import POSTERIORS

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


@pytest.mark.parametrize("name", ["atlas", "floor", "fused", "bingham", "classification"])
def test_a_posterior_shows_its_ball_and_modes(name):
    html = POSTERIORS[name].make(1)._repr_html_()
    assert html.count("data:image/png;base64,") == 1
    assert len(html) < 200_000
    assert not re.search(r"src=\"(?!data:)|<script", html)


def test_a_batch_shows_its_first_images_and_says_how_many_there_are():
    posterior = POSTERIORS["atlas"].make(6)
    html = posterior._repr_html_()
    assert html.count("<img") == 4
    assert "and 2 more images" in html
    assert html == posterior._repr_html_()
    assert posterior.expand(torch.Size([3, 6]))._repr_html_().startswith("<pre>")


def test_the_tour_runs_and_finds_what_its_text_says():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(TOUR, 4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(TOUR.parent)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert 8 <= len(cells) <= 12
    told = [str(cell.outputs) for cell in cells]
    assert "4 separate rotations" in told[1]
    assert "2 curves of rotations" in told[5]
    assert "clear: one rotation" in told[6]
    assert "clear: one rotation" in told[7]
    assert "holds the truth: True" in told[9]
