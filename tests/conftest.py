"""Shapes are types: the whole package is imported with its jaxtyping annotations checked at run time."""

from jaxtyping import install_import_hook

install_import_hook("aquamam", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
