"""A compiled model has the posterior of the model that it was made from."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from train_tiny import MODEL

from aquamam.baselines.classification import Classification, ClassificationConfig
from aquamam.network.compiled import compiled
from aquamam.errors import InputError
from aquamam.network.model import AQuaMaM


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="compiling needs a C++ compiler")
def test_compiled_models_have_the_same_posterior():
    check = Path(__file__).with_name("compiled_check.py")
    done = subprocess.run([sys.executable, check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "the same\n"


def test_what_cannot_be_compiled_is_told(monkeypatch):
    small = {"dim": 16, "heads": 2, "layers": 1, "hidden": 16, "image_size": 16, "stem": (4,), "stem_blocks": (0,)}
    with pytest.raises(InputError, match="only AQuaMaM models"):
        compiled(Classification(ClassificationConfig(**small)))
    with pytest.raises(InputError, match="for the CPU"):
        compiled(AQuaMaM(MODEL).to("meta"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="needs a C\\+\\+ compiler"):
        compiled(AQuaMaM(MODEL))
