"""The command line: help, facts, errors as one sentence, completion, and the demo."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scenes import bop_folder, picture, pose_model

from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.demo import VIEWS
from aquamam.cli.main import COMMANDS, main

SMALL = "dim=16 heads=2 layers=1 hidden=16 bins=12 image_size=16 stem=[4,4] stem_blocks=[0,0] batch_size=4"
SMALL += " validation_size=4"
TRAIN = "train die-small --data render:die"


def settings(text: str) -> list[str]:
    return [word for setting in text.split() for word in ("--set", setting)]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> dict[str, Path]:
    """What stands for words in capitals: a photograph, a model, a folder of them, a data set, and an empty folder."""
    root = tmp_path_factory.mktemp("world")
    Image.fromarray(picture(np.eye(3), np.array([1.5, -0.8, -20.0]))).save(root / "photo.png")
    model = save_model(pose_model(), root / "parts" / "die")
    (root / "empty").mkdir()
    folders = {"BOP": bop_folder(root / "bop"), "PARTS": root / "parts", "EMPTY": root / "empty"}
    return {"IMAGE": root / "photo.png", "MODEL": model, **folders}


def test_the_module_and_the_script_say_what_they_can_do():
    out = subprocess.run([sys.executable, "-m", "aquamam", "--help"], capture_output=True, text=True, check=True).stdout
    assert "Distributions over 3D rotations" in out
    for command in COMMANDS:
        assert f"\n    {command} " in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_defaults_and_no_secret(command, capsys, monkeypatch):
    monkeypatch.setenv("AQUAMAM_TOKEN", "secret")
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"aquamam {command}" in out.split("examples:")[1]
    assert "None" not in out
    assert "secret" not in out
    assert "--seed" not in out or "(default: 0)" in out or command == "train"


@pytest.mark.parametrize(
    ("preset", "parameters", "bins", "ceiling"),
    [("toy", 3_510_609, 50_257, 30.3954), ("die", 20_000_756, 500, 16.5644)],
)
def test_info_tells_parameters_bins_and_ceiling(preset, parameters, bins, ceiling, prints):
    facts = json.loads(prints("info", preset, "--json"))
    told = [facts[name] for name in ("parameters", "bins", "chart", "density")]
    assert told == [parameters, bins, "hemisphere", "paper"]
    assert facts["ceiling"] == pytest.approx(ceiling, abs=1e-3)
    assert f"{parameters:,}" in prints("info", preset)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("info no-such-model", "no checkpoint"),
        ("train no-such-preset --data render:die", "no preset"),
        ("train die-small --data nowhere", "no data set"),
        ("train die-small --data render: --steps 1", "render:die"),
        (f"{TRAIN} --set colour=1", "colour"),
        (f"{TRAIN} --set bins=many", "bins must be int"),
        (f"{TRAIN} --time-budget 1s --steps 2", "not both"),
        (f"{TRAIN} --steps 2 --set steps=3", "drop one"),
        (f"{TRAIN} --steps 1 --device abacus", "--device must be"),
        (f"{TRAIN} --set seed=-1", "seed must"),
        ("evaluate die --count 3 --device abacus", "--device must be"),
        ("fit tet --device abacus", "--device must be"),
        ("render die --preview p.png --diffuse nan", "diffuse must be"),
        ("render die --preview p.png --scale 3", "for mesh files"),
        ("symmetries tet --map m.xyz", "--map must end"),
        ("plot x.png --kind marginals --samples 7 -o a.png", "--samples does nothing"),
        ("plot x.png -o a.html --axis y", "--axis does nothing"),
        ("fly", "invalid choice: 'fly'"),
        ("plot", "required: IMAGE"),
        ("predict x.png --wings", "unrecognized arguments: --wings"),
        ("predict x.png --strategy luck", "invalid choice: 'luck'"),
        ("predict x.png --samples 3", "0 or a whole number of at least 16"),
        ("predict x.png --seed -1", "must be a whole number from 0"),
        ("reproduce hemisphere --seed 99999999999999999999", "must be a whole number from 0"),
        ("reproduce toy --lr high", "invalid float value: 'high'"),
        ("data inspect", "required: PATH"),
        (f"{TRAIN} --set lr", "FIELD=VALUE"),
        (f"{TRAIN} --steps 0", "at least 1"),
        (f"{TRAIN} --time-budget soon", "45m"),
        (f"{TRAIN} --time-budget=", "45m"),
        ("plot x.png --truth 1,2", "must be numbers qx,qy,qz,qw"),
        ("serve --port 70000", "from 0 to 65535"),
        ("serve --threads 0", "at least 1"),
        ("render die --split train", "must read like train=500,valid=100 or paper"),
        ("render die --count 2", "at least 3"),
        ("render die --shard 0/4", "must read I/N with 1 <= I <= N"),
        ("render die --background blurple", "must be R,G,B"),
        ("render x.obj --symmetry C0 --out x", "n must be from 1"),
        ("render die", "render needs somewhere to write"),
        ("render dice --out x", "'dice' is neither a file nor a solid; the solids are die"),
        ("render die die --out x", "objects of a data set need different names"),
        ("render die --out x --split train=0", "a split holds at least 1 image, got train=0"),
        ("render die --out x --split a/b=1", "a split's name is a word"),
        ("render die --out x --size 0", "size must lie between"),
        ("render die --out x --symmetry C2", "--symmetry is for mesh files"),
        ("render die --preview sheet.xyz --size 8", "--preview must end in .png"),
        ("data inspect nowhere", "no data set at nowhere"),
        ("data inspect .", "is not laid out like any known data set"),
        ("symmetries cube --texture", ""),
        ("symmetries nowhere.stl", "nowhere.stl"),
        ("fit nothing.stl", "neither a file nor a solid"),
        ("fit tet --size 60", "multiple of 16"),
        ("fit tet --preset toy", "reads images"),
        ("fit tet --held-out 10", "held-out images"),
        ("fit tet --set colour=1", "colour"),
        ("serve --port 0 --host no.such.host.invalid", "cannot listen"),
        ("serve --port 0 --max-queue 0", "queue must be positive"),
        ("serve --port 0 no-such-model", "no checkpoint"),
        ("serve --port 0 no-such-model.onnx", "there is none"),
        ("serve --port 0 =x", "different names"),
        ("export no-such-model a.onnx", "no-such-model"),
        ("export no-such-model a.pt", "ends in .onnx"),
        ("reproduce unimodal --steps 0", "at least 1"),
        ("reproduce toy --steps 0", "at least 1"),
        ("reproduce throughput --rounds 0", "at least 1"),
        ("reproduce toy --samples -1", "at least 1"),
        ("reproduce toy --systems oracle", "systems must be some of aquamam, ipdf, mog, got oracle"),
        ("reproduce toy --lr nan", "lr and steps must be positive"),
        ("reproduce toy --threads 0", "at least 1"),
        ("reproduce toy --level 99", "99"),
        ("reproduce peak --device cuda:77", "--device must be"),
        ("reproduce comparison --systems oracle", "systems are AQuaMaM"),
        ("reproduce comparison --distributions oracle", "distributions are peak"),
        ("reproduce comparison --seconds 0", "seconds must be positive"),
        ("reproduce all --only nonsense", "experiments are unimodal"),
        ("reproduce die --model nowhere", "nowhere"),
        ("predict IMAGE --model no-such-model", "no-such-model"),
        ("predict IMAGE --model MODEL --matrix", "--json or --csv"),
        ("predict IMAGE --model MODEL --device nonsense", "nonsense"),
        ("predict EMPTY --model MODEL", "holds none"),
        ("predict IMAGE --model MODEL --camera 200,200,79.5,59.5", "--camera needs boxes"),
        ("predict IMAGE --model MODEL --box 1,2,3", "left,top,width,height"),
        ("predict IMAGE --model MODEL --box 1,2,3,4 --detections x.json", "not allowed with"),
        ("predict IMAGE --model MODEL --box 1,2,3,4 --camera 200,nan,80,60", "finite"),
        ("predict IMAGE --model MODEL --box 1,2,0,4", "positive area"),
        ("predict IMAGE --model MODEL --box 1,2,3,4 --models nowhere", "folder of fitted parts"),
        ("predict IMAGE --model MODEL --detections nowhere.json", "nowhere.json"),
        ("predict --bop BOP --models PARTS", "name it with --out"),
        ("predict --bop BOP --models PARTS --out x.csv --box 1,2,3,4", "drop box"),
        ("predict --bop PARTS --models PARTS --out x.csv", "must hold BOP scenes"),
        ("predict --out x.csv", "with --bop"),
        ("predict", "nothing to predict"),
        ("plot IMAGE --model MODEL -o a.docx", ".html, .png, .svg, .pdf"),
        ("plot IMAGE --model MODEL -o a.html --kind marginals", "a.png"),
        ("plot IMAGE --model MODEL -o a.png --truth 1,1,1,1", "unit norm"),
        ("plot IMAGE --model MODEL -o a.png --object unheard-of", "neither a file nor a solid"),
        ("plot IMAGE --model MODEL -o a.png --box 7,5,9,9 --kind pose", "needs --camera"),
        ("plot IMAGE --box 7,5,9,9 --kind pose --model cylinder-plain --camera 9,9,7,5 -o a.png", "that tells poses"),
        ("plot IMAGE --model MODEL -o a.png --camera 1,1,1,1", "give --box"),
        ("evaluate MODEL --data nowhere", "there is no data set at nowhere"),
        ("evaluate MODEL --data render:", "render: needs a solid"),
        ("evaluate MODEL --data render:nothing.obj", "nothing.obj"),
        ("evaluate MODEL --data BOP --object 7 --split dev", "dev"),
        ("evaluate MODEL --split test", "--data"),
        ("evaluate MODEL --count 0", "at least 1 image"),
        ("evaluate MODEL --strategies guess", "strategies are greedy, beam, expected, got guess"),
        ("evaluate MODEL --quiet --count 2 --samples 0 --out IMAGE", "photo.png"),
    ],
)
def test_a_bad_command_gets_one_sentence_and_writes_nothing(arguments, sentence, refuses, tmp_path, monkeypatch, world):
    monkeypatch.chdir(tmp_path)
    error = refuses(*(world.get(word, word) for word in arguments.split()))
    assert re.fullmatch(r"aquamam: .*\.\n", error)
    assert sentence in error
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_ends_every_command_with_130_and_no_traceback(command, monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    examples = import_module(f"aquamam.cli.{command}").__doc__
    words = next(line for line in examples.splitlines() if f"aquamam {command}" in line).split(f"aquamam {command}")[1]
    arguments = shlex.split(re.split(r"\s{2,}|\)|#| > ", words.strip())[0])
    monkeypatch.setattr(f"aquamam.cli.{command}.run", interrupted)
    assert main([command, *arguments]) == 130
    assert capsys.readouterr().err == "aquamam: stopped.\n"


def test_ctrl_c_ends_a_real_training_cleanly(tmp_path):
    run = tmp_path / "run"
    words = f"-m aquamam {TRAIN} --steps 100000 --out".split()
    command = [sys.executable, *words, str(run), *settings(SMALL)]
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # a suite in the background ignores it
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **heard)
    while not run.exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert error.strip().splitlines()[-1].endswith("aquamam: stopped.")


def test_train_command_trains_and_resumes(tmp_path, prints):
    small = settings(SMALL + " validate_every=2")
    arguments = [*f"{TRAIN} --steps 3 --quiet --out".split(), tmp_path, *small]
    told = prints(*arguments)
    assert "3 steps, 12 images" in told
    assert prints(*arguments) == told  # finished: says the same again
    facts = json.loads(prints("info", tmp_path, "--json"))
    assert facts["info"]["data"]["objects"][0]["name"] == "die"


def test_the_demo_tells_of_every_view_and_writes_pictures_and_pages(tmp_path, prints):
    told = prints("demo", "--out", tmp_path)
    for name, (_, _, _, caption, fact) in VIEWS.items():
        assert f"{caption} (in truth {fact})" in told
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{name}.html").stat().st_size > 100_000
    angles = re.findall(r"the prediction is (.*) degrees from the (?:truth|nearest of them)", told)
    assert len(angles) == len(VIEWS)
    assert all(float(angle) < 5 for angle in angles)
    assert len(re.findall("clear: one rotation", told)) == 2
    shares = re.search(r"4 separate rotations \((.*) %\)", told)[1]
    assert all(20 <= int(share) <= 30 for share in shares.split(","))
    assert "2 curves of rotations" in told


CASES = {  # what is typed, and what is offered in a folder with photo.png, model.onnx and a folder data
    "aquamam pre": ["predict"],
    "aquamam predict --strategy ": ["greedy", "beam", "expected"],
    "aquamam predict --json p": ["photo.png"],
    "aquamam train die-small --data d": ["data"],
    "aquamam export die m": ["model.onnx"],
    "aquamam reproduce un": ["unimodal"],
    "aquamam data inspect --camera openc": ["opencv"],
    "aquamam completion z": ["zsh"],
}


def test_bash_offers_commands_options_choices_and_files(tmp_path, prints):
    script = tmp_path / "script"
    script.write_text(prints("completion", "bash"))
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


def test_bench_tells_speed_and_memory_of_each_model(prints, monkeypatch):
    monkeypatch.setattr("aquamam.cli.bench.SECONDS", 0.0)
    for row in json.loads(prints("bench", "die", "cylinder", "--threads", "1", "--json")):
        assert row["model"] in ("die", "cylinder")
        assert row["images_per_second"] > 0
        assert row["ms_for_one"] > 0
        assert row["memory_mb"] > 50
