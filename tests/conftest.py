"""Shapes are types: the whole package is imported with its jaxtyping annotations checked at run time."""

import sys
from pathlib import Path

from jaxtyping import install_import_hook

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/plain.py is also the tests' oracle

install_import_hook("aquamam", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)  # tests are small: more threads only get in each other's way on a busy machine


@pytest.fixture(scope="module")  # while playwright runs, no other event loop can
def browser():
    """Chromium; without it the pages' texts are checked all the same."""
    from browsers import CHROMIUM, FLAGS

    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def prints(capsys):
    """A command that succeeds: what it prints. Words may be paths and numbers."""
    from aquamam.cli.main import main

    def run(*words) -> str:
        capsys.readouterr()
        status, (out, error) = main([str(word) for word in words]), capsys.readouterr()
        assert status == 0, error
        return out

    return run


@pytest.fixture
def refuses(capsys):
    """A command that does not: the one line of its complaint, with exit code 2."""
    from aquamam.cli.main import main

    def run(*words) -> str:
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as stop:  # argparse leaves by it
            status = stop.code
        error = capsys.readouterr().err
        assert (status, error.count("\n")) == (2, 1), error
        return error

    return run
