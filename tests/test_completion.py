"""Completion: the printed script, sourced in a real bash."""

import shlex
import subprocess
import sys

import pytest

from aquamam.cli.main import main

CASES = {  # what is typed, and what is offered in a folder with photo.png, model.onnx and a folder data
    "aquamam pre": ["predict"],
    "aquamam predict --str": ["--strategy"],
    "aquamam predict --strategy ": ["greedy", "beam", "expected"],
    "aquamam predict --json p": ["photo.png"],
    "aquamam train die-small --data d": ["data"],
    "aquamam train die-small --data m": [],
    "aquamam export die m": ["model.onnx"],
    "aquamam reproduce un": ["unimodal"],
    "aquamam reproduce toy --scale ": ["cpu", "paper"],
    "aquamam data inspect --camera openc": ["opencv"],
    "aquamam completion z": ["zsh"],
}


def test_bash_offers_commands_options_choices_and_files(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    subprocess.run(["bash", "-n", script], check=True)
    (tmp_path / "here" / "data").mkdir(parents=True)
    for name in ("photo.png", "model.onnx"):
        (tmp_path / "here" / name).touch()
    lines = [f"source {script}"]
    for typed in CASES:
        words = typed.split(" ")
        lines.append(f"COMPREPLY=(); COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_aquamam")
        lines.append("echo ${COMPREPLY[@]}")
    run = subprocess.run(["bash"], input="\n".join(lines), capture_output=True, text=True, cwd=tmp_path / "here")
    offered = dict(zip(CASES, run.stdout.splitlines()))
    assert {typed: sorted(offered[typed].split()) for typed in CASES} == {t: sorted(w) for t, w in CASES.items()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_a_script_is_printed_without_importing_torch(shell):
    check = f"import sys\nfrom aquamam.cli.main import main\nmain(['completion', '{shell}'])\n"
    check += "assert 'torch' not in sys.modules"
    out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert "strategy" in out
