"""The package's shape: imports point one way, start-up is light, public names exist."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aquamam

ROOT = Path(aquamam.__file__).parent
# The way of the data: a package imports only from itself and from those before it.
ORDER = "errors files geometry posterior network baselines checkpoints rendering shape data training evaluation"
ORDER += " plotting pages fit export serving reproduce cli __main__"
RANK = {name: rank for rank, name in enumerate(ORDER.split())}


def imported(path: Path) -> set[str]:
    """Names of the aquamam modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "aquamam":
            found |= {alias.name for alias in node.names if alias.name in RANK}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("aquamam."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("aquamam.")}
    return found


@pytest.mark.parametrize(
    "path", [p for p in sorted(ROOT.rglob("*.py")) if p.name != "__init__.py" or p.parent != ROOT], ids=str
)
def test_imports_point_upwards(path):
    module = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert module in RANK, f"give {module} a place in ORDER"
    later = {other for other in imported(path) if RANK[other] > RANK[module]}
    assert not later, f"{module} imports {sorted(later)}, which stand below it"


MAIN, HEAVY = "from aquamam.cli.main import main; ", {"torch", "numpy"}
STARTS = {  # what is run -> what it does not import, and what it prints
    "import aquamam": (HEAVY, ""),
    "import aquamam.training.trainer": ({"aquamam.shape"}, ""),
    f"{MAIN}main(['info', '--help'])": (HEAVY, "usage"),
    **{f"{MAIN}main(['completion', '{s}'])": (HEAVY, "strategy") for s in ("bash", "zsh", "tcsh", "fish")},
}


@pytest.mark.parametrize("code", STARTS)
def test_nothing_is_imported_before_it_is_needed(code):
    absent, told = STARTS[code]
    check = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nassert not {absent} & {{*sys.modules}}"
    run = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert told in run.stdout


def test_public_names_exist():
    for name in aquamam.__all__:
        assert getattr(aquamam, name) is not None
    assert set(aquamam.__all__) <= set(dir(aquamam))
    with pytest.raises(AttributeError, match="public names"):
        _ = aquamam.nonsense


def test_the_public_names_pass_strict_types_in_a_users_file():
    """Also the other way round: `--strict` reports an ignored mistake that is none."""
    user = Path(__file__).with_name("typed_user.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(user)]
    command += ["--cache-dir", str(user.parents[1] / ".mypy_cache" / "strict")]  # `make check` has other options
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(ROOT.parent)})
    assert run.returncode == 0, run.stdout + run.stderr
