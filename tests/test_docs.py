"""Every code block of the documentation is run, or parsed by what would run it.

- `python`: run, all blocks of a page one after the other in one namespace, in a folder with pictures, a mesh, a data set and models.
- `sh`, `bash`, `console`: a command of RUN is run in that folder, and so are previews and help. All others take long or change the computer (training, serving, pip, make):
  they are parsed by the program's own parser, and files, targets and extras that they name must exist. `curl` asks a service in this process.
- `# long` as a block's first line: its commands are parsed only, its Python compiled only.
- `cpp` is compiled and compared with the package where there is a compiler; `text`, `json`, ... (SHOWN) are read, not run.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import trimesh
from blocks import PAGES, ROOT, SHELLS, Block, Command, blocks_of, commands_of, inline_commands
from PIL import Image
from services import InProcess, tiny_model

from aquamam.geometry.cells import Cells
from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.main import COMMANDS, build_parser, main
from aquamam.cli.demo import VIEWS
from aquamam.network.model import ModelConfig
from aquamam.training.presets import PRESETS
from aquamam.training.config import TrainConfig
from aquamam.rendering.render import RenderSettings, render
from aquamam.geometry.rotations import random_quat, rotvec_to_quat
from aquamam.rendering.solids import solid

RUN = {"predict", "sample", "density", "plot", "info", "data", "completion", "symmetries"}
SHOWN = {"text", "json", "cpp", "yaml", "toml", "csv"}
ELSEWHERE = {"docs/export.md": "test_export.py"}  # pages whose Python another test runs, with fixtures of its own


def options_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], set[str]]:
    """The options of each command, and of the commands of a command."""
    found = {path: set(parser._option_string_actions)}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                found |= options_of(command, (*path, name))
    return found


OPTIONS = options_of(build_parser())
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """What the pages speak of: pictures of the die, a mesh, tables of rotations, models, data sets; all of them small."""
    folder = tmp_path_factory.mktemp("world")
    views = torch.cat([torch.tensor([[0.0, 0, 0, 1]]), random_quat((2,), generator=torch.Generator().manual_seed(0))])
    five, *others = render(solid("die").mesh, views.double().numpy(), RenderSettings(size=64))
    pictures = ["die.png", "picture.png", "photo.png", "crop.png", "part.png", "part.jpg"]
    pictures += ["out/demo/five-input.png", "out/demo/cylinder-input.png"]
    for name, pixels in [*((name, five) for name in pictures), *zip(["photos/a.png", "photos/b.png"], others)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
    for name in ("part.obj", "part.stl", "part.ply"):
        trimesh.creation.box((1.0, 2.0, 3.0)).export(folder / name)
    for name in ("rotations.csv", "candidates.csv", "grid.csv"):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([["qx", "qy", "qz", "qw"], *views.tolist()])
    with (folder / "photos" / "labels.csv").open("w", newline="") as file:  # the same two pictures in every split
        splits = [[name, split] for split in ("train", "valid", "calibration", "test") for name in ("a.png", "b.png")]
        rows = [[*row, *view] for row, view in zip(splits, views[1:].tolist() * 4)]
        csv.writer(file).writerows([["image", "split", "qx", "qy", "qz", "qw"], *rows])
    for name in ("runs/die", "runs/part", "runs/part2", "part", "part-photos"):
        save_model(tiny_model(image_size=64, stem=(4, 8, 8, 8), stem_blocks=(0, 0, 0, 0)), folder / name)
    data = ["render", "die", "--out", str(folder / "data/die"), "--size", "64", "--workers", "1"]
    assert main([*data, "--split", "train=8,valid=4,test=4"]) == 0
    return folder


def frames_of_a_turning_die() -> dict:
    """What tracking.md takes for granted: three frames of a turntable, a stream of them, a rotation."""
    turns = [rotvec_to_quat(torch.tensor([0, math.radians(a), 0], dtype=torch.float64)) for a in (0.0, 12.0, 90.0)]
    frames = [Image.fromarray(render(solid("die").mesh, turn.numpy(), RenderSettings(size=64))) for turn in turns]
    steps = [turns[0], turns[1]]
    return {"frames": frames, "stream": list(zip(frames, steps)), "q": torch.tensor([[0.0, 0, 0, 1]])}


GIVEN = {"tracking.md": frames_of_a_turning_die}


@pytest.fixture
def world(filled, tmp_path, monkeypatch) -> Path:
    """A copy that one page may change."""
    shutil.copytree(filled, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    torch.manual_seed(0)
    return tmp_path / "world"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs(page, world):
    names: dict = {"__name__": "page", **(GIVEN[page.name]() if page.name in GIVEN else {})}
    blocks = blocks_of(page)
    for block in blocks:
        if block.language == "python" and block.page.relative_to(ROOT).as_posix() not in ELSEWHERE:
            code = compile("\n" * block.line + block.text, block.place, "exec")  # tracebacks tell the page's line
            if not is_long(block):
                exec(code, names)
        elif block.language in SHELLS:
            shell(block)
        elif block.language == "json":
            json.loads(block.text)


def is_long(block: Block) -> bool:
    return block.text.startswith("# long")


def shell(block: Block) -> None:
    """Run or parse the commands of a block."""
    stdin = ""
    for command in block.commands:
        told = f"{block.place}: {' '.join(command.words)}"
        out = ""
        if is_cheap(command) and not is_long(block):
            status, out, error = call(command.words[1:], stdin)
            assert status == 0, f"{told}\n{error}"
        else:
            parse(command.words, told)
        stdin = out if command.end == "|" else ""
        if command.end == ">":
            Path(command.target).write_text(out)


def is_cheap(command: Command) -> bool:
    program, *rest = command.words
    return program == "aquamam" and (rest[0] in RUN or "--help" in rest or "--preview" in rest) and "--map" not in rest


def call(arguments: list[str], stdin: str = "") -> tuple[int, str, str]:
    """The command in this process: status, stdout and stderr."""
    out, error, kept = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    finally:
        sys.stdin = kept
    return status, out.getvalue(), error.getvalue()


# --- commands that are not run ----------------------------------------------------------------------------------------


class Parsed(Exception):
    """A program read its arguments; it need not go on."""


def parse(words: list[str], told: str) -> None:
    """Whether the program that the words name would take the others."""
    program, *rest = words
    if program in ("source", "."):  # a file of an environment, or what a command prints
        if not rest[0].endswith("/activate"):
            parse(rest, told)
    elif program == "aquamam":
        parse_ours(rest, told)
    elif program == "torchrun":
        assert "-m" in rest, told
        module = rest[rest.index("-m") + 1 :]
        assert module[0] == "aquamam", told
        parse_ours(module[1:], told)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(rest) <= set(targets), told
    elif program in ("pip", "python") and "pip" in words:
        assert "install" in rest, told
        extras = {e for inside in re.findall(r"\[([\w,]+)\]", " ".join(rest)) for e in inside.split(",")}
        known = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
        assert extras <= set(re.findall(r"^(\w+) = \[", known, re.M)), told
    elif program == "python":
        parse_python(rest, told)
    elif program in ("bash", "sh"):
        assert (ROOT / rest[0]).exists(), told
    elif program == "curl":
        assert ask(rest).status_code == 200, told
    else:
        pytest.fail(f"{told}: say in test_docs.py how {program!r} is checked")


def parse_ours(arguments: list[str], told: str) -> None:
    named = next((a for a in arguments if not a.startswith("-")), "")
    error = io.StringIO()
    try:
        with contextlib.redirect_stderr(error):
            args = build_parser(named).parse_args(arguments)
    except SystemExit:
        pytest.fail(f"{told}\n{error.getvalue()}")
    if named == "train":
        assert args.preset in PRESETS, told
        known = {*ModelConfig.__dataclass_fields__, *TrainConfig.__dataclass_fields__}
        assert set(dict(args.set)) <= known, told


def parse_python(rest: list[str], told: str) -> None:
    """A script or module of the repository reads its arguments with its own parser, and is stopped then."""
    if rest[0] == "-m" and rest[1] == "aquamam":
        return parse_ours(rest[2:], told)
    name, arguments = (rest[1], rest[2:]) if rest[0] == "-m" else (rest[0], rest[1:])
    path = ROOT / (name.replace(".", "/") if rest[0] == "-m" else name)
    path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert path.exists(), told
    if "ArgumentParser" not in path.read_text():
        return None

    def parse_args(parser: argparse.ArgumentParser) -> None:
        known(parser, arguments)
        raise Parsed

    known = argparse.ArgumentParser.parse_args
    error = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(error):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit:
            pytest.fail(f"{told}\n{error.getvalue()}")
        except Parsed:
            return None
    return pytest.fail(f"{told} ran without reading its arguments")


def ask(rest: list[str]):
    """What a service in this process answers to curl."""
    fields = [rest[i + 1] for i, word in enumerate(rest) if word == "-F"]
    path = re.sub(r"^https?://[^/]+", "", next(word for word in rest if word.startswith("http")))
    form = dict(field.split("=", 1) for field in fields)
    files = {name: Path(value[1:]).read_bytes() for name, value in form.items() if value.startswith("@")}
    data = {name: value for name, value in form.items() if not value.startswith("@")}
    service = InProcess({"die": tiny_model()})
    try:
        if not form:
            return service.get(path)
        return service.post(path, data=data, files={k: (f"{k}.png", v) for k, v in files.items()})
    finally:
        service.close()


# --- nothing is left out ----------------------------------------------------------------------------------------------


def test_every_block_says_what_it_is_and_none_is_left_out():
    kinds = {language: sum(block.language == language for block in BLOCKS) for language in {b.language for b in BLOCKS}}
    left = [block.place for block in BLOCKS if block.language not in {"python", *SHELLS, *SHOWN}]
    assert not left, f"name a language behind the fence of {left}"
    fences = sum(len(re.findall(r"^ *```", page.read_text(), re.M)) for page in PAGES)
    assert fences == 2 * len(BLOCKS) == 2 * sum(kinds.values())
    for block in BLOCKS:
        if block.language in SHELLS:
            assert block.commands, f"{block.place} holds no command"


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_pages_that_other_tests_run_are_run_there(page, test):
    assert Path(page).name in (ROOT / "tests" / test).read_text()


def test_code_for_cpp_compiles():
    compiler = shutil.which("c++") or shutil.which("clang++")
    for block in BLOCKS:
        if block.language == "cpp":
            assert block.text.count("{") == block.text.count("}")
            if compiler:
                arguments = [compiler, "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-x", "c++", "-"]
                subprocess.run(arguments, input=block.text, text=True, check=True)


CHECK = """
#include <cstdio>
int main() {
  Rules r{BINS, 1, 0.7071067811865476, {0, 1, 2, 3}, BY_VOLUME, SPILL};
  std::vector<int64_t> chosen(2);
  std::vector<float> logits(BINS);
  while (std::scanf("%ld %ld", &chosen[0], &chosen[1]) == 2) {
    for (float& x : logits) if (std::scanf("%f", &x) != 1) return 1;
    restrict_to_legal(r, chosen, logits.data());
    for (float x : logits) std::printf("%.6g ", x);
  }
}
"""


@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("clang++")), reason="needs a C++ compiler")
@pytest.mark.parametrize(("by_volume", "spill"), [(False, 0.0), (True, 0.0), (False, 0.4), (True, 0.4)])
def test_code_for_cpp_restricts_as_the_package_does(tmp_path, generator, by_volume, spill):
    cells = Cells.make("atlas", 15, by_volume=by_volume, spill=spill)
    prefix = cells.locate(cells.chart.split(random_quat((60,), generator=generator, dtype=torch.float64)))[:, :2]
    logits = torch.randn(60, 15, generator=generator)
    (code,) = [block.text for block in BLOCKS if block.language == "cpp"]
    check = CHECK.replace("BINS", "15").replace("BY_VOLUME", str(by_volume).lower()).replace("SPILL", str(spill))
    compiler = shutil.which("c++") or shutil.which("clang++")
    program = tmp_path / "check"
    subprocess.run([compiler, "-std=c++17", "-x", "c++", "-", "-o", program], input=code + check, text=True, check=True)
    lines = "\n".join(" ".join(map(str, [*p.tolist(), *x.tolist()])) for p, x in zip(prefix, logits))
    found = subprocess.run([program], input=lines, text=True, capture_output=True, check=True).stdout
    got = torch.tensor([float(x) for x in found.split()]).reshape(60, 15)
    want = cells.restrict(logits, prefix)
    assert torch.equal(got.isfinite(), want.isfinite())
    assert torch.allclose(got[got.isfinite()], want[got.isfinite()], atol=1e-3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_in_sentences_exist(page):
    for text in inline_commands(page):
        program, name, *rest = text.split()
        if program == "make":
            parse(["make", name], f"{page.name}: {text}")
            continue
        if name.startswith("-"):
            assert name in OPTIONS[()], f"{page.name}: {text}"
            continue
        if name == "COMMAND":
            continue
        assert name in COMMANDS, f"{page.name}: {text}"
        path = (name, *rest[:1]) if (name, *rest[:1]) in OPTIONS else (name,)
        options = {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert options <= OPTIONS[path], f"{page.name}: {text}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_help_are_right(name):
    lines = import_module(f"aquamam.cli.{name}").EXAMPLES.splitlines()
    examples = [re.split(r"\s{2,}", line.strip())[0] for line in lines if line.startswith("  ")]
    assert examples
    for example in examples:
        for command in commands_of(example):
            if command.words[0] != "curl":  # docs/serving.md has the same, with an image
                parse(command.words, f"aquamam {name} --help: {example}")


def test_the_picture_of_the_readme_is_one_that_the_demo_writes():
    read = re.findall(r"out/demo/[\w-]+\.png", (ROOT / "README.md").read_text())
    assert read
    assert set(read) <= {f"out/demo/{view.name}-input.png" for view in VIEWS}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_from_equation_to_function_names_what_exists():
    text = (ROOT / "docs/concepts.md").read_text().split("## From equation to function")[1].split("\n## ")[0]
    cells = [row.split("|")[3] for row in text.splitlines() if row.startswith("|")][2:]
    found = [name for cell in cells for name in re.findall(r"`(\w+\.[\w.]+)`", cell)]
    assert len(found) >= len(cells) >= 15
    for name in found:
        thing = pkgutil.resolve_name(f"aquamam.{name}")
        assert callable(thing) or isinstance(thing, property), name


def test_the_pages_of_the_site_are_all_in_its_menu():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(page.relative_to(docs).as_posix() for page in PAGES if docs in page.parents)


def test_the_reference_names_what_exists():
    named = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
    assert {"aquamam.posterior.distribution", "aquamam.network.model", "aquamam.checkpoints.checkpoint"} <= set(named)
    assert len(named) == len(set(named))
    for name in named:
        assert pkgutil.resolve_name(name).__doc__, name


def test_the_site_is_built_without_a_warning_and_needs_no_other_host(tmp_path):
    """`strict` is set in mkdocs.yml: a broken link or an unknown name of the reference ends the build."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len([page for page in PAGES if ROOT / "docs" in page.parents])
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]* (?:src|href)="(https?:)?//', text)
        assert not loaded, page.name
        assert "arithmatex" not in text, f"a formula of {page.name} is not MathML"
