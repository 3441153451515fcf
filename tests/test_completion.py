"""Completion: real bash, with the script that the command prints."""

import json
import shlex
import subprocess
import sys

import pytest

from aquamam.checkpoints.checkpoint import bundled
from aquamam.cli.main import COMMANDS, build_parser, main
from aquamam.cli.completion_scripts import commands, names, script
from aquamam.training.presets import PRESETS
from aquamam.rendering.solids import NAMES

PARSER = build_parser()
CASES: list[tuple[str, list[str]]] = [  # what is typed, as bash breaks it, and what is offered
    ("aquamam pre", ["predict"]),
    ("aquamam predict --str", ["--strategy"]),
    ("aquamam predict --strategy ", ["greedy", "beam", "expected"]),
    ("aquamam predict --strategy = gr", ["greedy"]),
    ("aquamam predict --model d", ["die", "data"]),
    ("aquamam predict --json p", ["photo.png"]),
    ("aquamam predict photo.png --c", ["--csv"]),
    ("aquamam info die-s", ["die-small"]),
    ("aquamam train die-sm", ["die-small"]),
    ("aquamam train die-small --data render : cyl", ["cylinder", "cyl", "cylO"]),
    ("aquamam train die-small --data = render : cyli", ["cylinder"]),
    ("aquamam train die-small --data d", ["data"]),
    ("aquamam render sph", ["sphereX"]),
    ("aquamam fit sph", ["sphereX"]),
    ("aquamam reproduce un", ["unimodal"]),
    ("aquamam reproduce --out x un", []),  # --out belongs to the experiment
    ("aquamam reproduce toy --sc", ["--scale"]),
    ("aquamam reproduce toy --scale ", ["cpu", "paper"]),
    ("aquamam data inspect --camera openc", ["opencv"]),
    ("aquamam export die m", ["my model.onnx"]),
    ("aquamam export die my\\ m", ["my model.onnx"]),
    ("aquamam predict --device ", []),
    ("aquamam completion z", ["zsh"]),
    ("aquamam --v", ["--version"]),
    ("aquamam nonsense --x", []),
]


@pytest.fixture(scope="module")
def offered(tmp_path_factory) -> list[list[str]]:
    """What bash offers in each case, in a folder with a few files."""
    folder = tmp_path_factory.mktemp("completion")
    for name in ("photo.png", "my model.onnx"):
        (folder / name).touch()
    (folder / "data").mkdir()
    lines = [script("bash", PARSER)]
    for typed, _ in CASES:
        words = [word.replace("\0", "\\ ") for word in typed.replace("\\ ", "\0").split(" ")]
        quoted = " ".join(map(shlex.quote, words))
        lines.append(f"COMPREPLY=(); COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _aquamam")
        lines.append("printf '%s\\t' \"${COMPREPLY[@]}\"; echo")
    run = subprocess.run(["bash"], input="\n".join(lines), capture_output=True, text=True, check=True, cwd=folder)
    assert not run.stderr
    return [[word for word in line.split("\t") if word] for line in run.stdout.splitlines()]


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: CASES[case][0])
def test_bash_offers_what_fits(case, offered):
    assert sorted(offered[case]) == sorted(CASES[case][1])


def test_bash_offers_all_commands_and_all_options():
    tree = list(commands(PARSER))
    lines = [script("bash", PARSER)]
    for command in tree:
        path = " ".join(["aquamam", *command.path])
        lines.append(f"COMP_WORDS=({path} -); COMP_CWORD={len(command.path) + 1}; _aquamam; echo ${{COMPREPLY[@]}}")
    lines.append('COMP_WORDS=(aquamam ""); COMP_CWORD=1; _aquamam; echo ${COMPREPLY[@]}')
    out = subprocess.run(
        ["bash"], input="\n".join(lines), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert out[-1].split() == list(COMMANDS)
    for command, line in zip(tree, out):
        assert set(line.split()) == {name for option in command.options for name in option.names}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_scripts_name_all_commands_options_and_choices(shell):
    text = script(shell, PARSER)
    for command in commands(PARSER):
        assert all(name in text for name in command.children)
        for option in command.options:
            assert all((name if shell == "zsh" else name.lstrip("-")) in text for name in option.names)
            assert all(word.replace(":", "\\:" if shell == "zsh" else ":") in text for word in option.words)


def test_names_that_are_read_without_import_are_the_real_ones():
    assert names("presets") == tuple(PRESETS)
    assert names("solids") == NAMES
    assert names("models") == tuple(bundled())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_without_importing_torch(shell):
    check = (
        "import sys, json, io, contextlib\nfrom aquamam.cli.main import main\nout = io.StringIO()\n"
        f"with contextlib.redirect_stdout(out): status = main(['completion', '{shell}'])\n"
        "print(json.dumps([status, 'torch' in sys.modules, 'numpy' in sys.modules, out.getvalue()]))"
    )
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    status, torch, numpy, text = json.loads(run.stdout)
    assert (status, torch, numpy) == (0, False, False)
    assert text == script(shell, PARSER)


def test_other_shells_are_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["completion", "tcsh"])
    assert stop.value.code == 2
    assert "bash" in capsys.readouterr().err
