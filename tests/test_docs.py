"""Every code block of the documentation is run, or parsed by the program that would run it.

- `python`: all blocks of a page run in order in one namespace, in a folder with images, a mesh, a data set and models.
- `sh`: commands of RUN, previews and help run in that folder; the others take long or change the computer, so their own
  parser reads them, and files, targets and extras that they name must exist. `curl` asks a service in this process.
- `# long` as a block's first line: its commands are parsed only, its Python compiled only.
- `cpp` is compiled and compared with the package where there is a compiler; the languages of SHOWN are not run.
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
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import trimesh
from PIL import Image
from services import InProcess, tiny_model

from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.demo import VIEWS
from aquamam.cli.main import COMMANDS, build_parser, main
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import random_quat, rotvec_to_quat
from aquamam.network.model import ModelConfig
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.training.config import TrainConfig
from aquamam.training.presets import PRESETS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"predict", "sample", "density", "plot", "info", "data", "completion", "symmetries"}
SHOWN = {"text", "json", "cpp", "csv"}
ELSEWHERE = {"export.md"}  # whose Python tests/test_export.py runs
COMPILER = shutil.which("c++") or shutil.which("clang++")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


class Block(NamedTuple):
    place: str
    line: int
    language: str
    text: str

    @property
    def is_long(self) -> bool:
        return self.text.startswith("# long")


class Command(NamedTuple):
    words: list[str]
    end: str = ""  # the operator behind it
    target: str = ""  # of >


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in re.finditer(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", text, re.M):
        line, code = text[: match.start()].count("\n") + 1, re.sub(f"^{match[1]}", "", match[3], flags=re.M)
        found.append(Block(f"{page.relative_to(ROOT)}:{line}", line, match[2], code))
    assert 2 * len(found) == len(re.findall(r"^ *```", text, re.M)), f"{page.name} has a block that does not end"
    return found


def commands_of(line: str) -> list[Command]:
    """The commands of a line, comments left out; of `source <(command)` the command is what matters."""
    lexer = shlex.shlex(re.sub(r"<\((.*?)\)", r"\1", line), posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    found, words, tokens = [], [], iter(lexer)
    for token in tokens:
        if token in ("|", "&&", ";", ">"):
            found.append(Command(words, token, next(tokens) if token == ">" else ""))
            words = []
        else:
            words.append(token)
    return [*found, Command(words)] if words else found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """What the pages speak of: images of the die, a mesh, tables of rotations, models, data sets; all of them small."""
    folder = tmp_path_factory.mktemp("world")
    views = torch.cat([torch.tensor([[0.0, 0, 0, 1]]), random_quat((2,), generator=torch.Generator().manual_seed(0))])
    five, *others = render(solid("die").mesh, views.double().numpy(), RenderSettings(size=64))
    names = ["die", "picture", "image", "photo", "crop", "part", "out/demo/light-input", "out/demo/cylinder-input"]
    for name, pixels in [*((name, five) for name in names), *zip(["photos/a", "photos/b"], others)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    for end in ("obj", "stl", "ply"):
        trimesh.creation.box((1.0, 2.0, 3.0)).export(folder / f"part.{end}")
    for name in ("rotations.csv", "candidates.csv", "grid.csv"):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([["qx", "qy", "qz", "qw"], *views.tolist()])
    with (folder / "photos" / "labels.csv").open("w", newline="") as file:  # the same two images in every split
        splits = [[name, split] for split in ("train", "valid", "calibration", "test") for name in ("a.png", "b.png")]
        rows = [[*row, *view] for row, view in zip(splits, views[1:].tolist() * 4)]
        csv.writer(file).writerows([["image", "split", "qx", "qy", "qz", "qw"], *rows])
    for name in ("runs/die", "runs/part", "runs/part2", "part", "part-photos"):
        save_model(tiny_model(image_size=64, stem=(4, 8, 8, 8), stem_blocks=(0, 0, 0, 0)), folder / name)
    data = ["render", "die", "--out", str(folder / "data/die"), "--size", "64", "--workers", "1"]
    assert main([*data, "--split", "train=8,valid=4,test=4"]) == 0
    return folder


def frames_of_a_rotating_die() -> dict:
    """What tracking.md takes for granted: three frames of a turntable, a stream of them, a rotation."""
    turns = [rotvec_to_quat(torch.tensor([0, math.radians(a), 0], dtype=torch.float64)) for a in (0.0, 12.0, 90.0)]
    frames = [Image.fromarray(render(solid("die").mesh, turn.numpy(), RenderSettings(size=64))) for turn in turns]
    return {"frames": frames, "stream": list(zip(frames, turns[:2])), "q": torch.tensor([[0.0, 0, 0, 1]])}


@every_page
def test_the_code_of_a_page_runs(page, filled, tmp_path, monkeypatch):
    shutil.copytree(filled, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    torch.manual_seed(0)
    names = {"__name__": "page", **(frames_of_a_rotating_die() if page.name == "tracking.md" else {})}
    for block in blocks_of(page):
        if block.language == "python" and page.name not in ELSEWHERE:
            code = compile("\n" * block.line + block.text, block.place, "exec")  # tracebacks tell the page's line
            if not block.is_long:
                exec(code, names)
        elif block.language == "sh":
            shell(block)
        elif block.language == "json":
            json.loads(block.text)


def shell(block: Block) -> None:
    """Run or parse the commands of a block."""
    stdin = ""
    commands = [command for line in block.text.replace("\\\n", " ").splitlines() for command in commands_of(line)]
    assert commands, f"{block.place} holds no command"
    for words, end, target in commands:
        told, out = f"{block.place}: {' '.join(words)}", ""
        quick = words[0] == "aquamam" and (words[1] in RUN or {"--help", "--preview"} & {*words})
        if quick and "--map" not in words and not block.is_long:
            status, out, error = call(words[1:], stdin)
            assert status == 0, f"{told}\n{error}"
        else:
            parse(words, told)
        stdin = out if end == "|" else ""
        if end == ">":
            Path(target).write_text(out)


def call(arguments: list[str], stdin: str) -> tuple[int, str, str]:
    """The command in this process: status, stdout and stderr."""
    out, error = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, out.getvalue(), error.getvalue()


# --- commands that are not run ----------------------------------------------------------------------------------------


def parse(words: list[str], told: str) -> None:
    """Whether the program that the words name would take the others."""
    program, *rest = words
    if program in ("source", "."):  # a file of an environment, or what a command prints
        if not rest[0].endswith("/activate"):
            parse(rest, told)
    elif program == "aquamam":
        parse_ours(rest, told)
    elif program == "torchrun" or (program == "python" and rest[:2] == ["-m", "aquamam"]):
        module = rest.index("-m") + 1
        assert rest[module] == "aquamam", told
        parse_ours(rest[module + 1 :], told)
    elif program == "make":
        assert set(rest) <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)), told
    elif program == "pip":
        assert rest[0] == "install", told
        extras = {e for inside in re.findall(r"\[([\w,]+)\]", " ".join(rest)) for e in inside.split(",")}
        known = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
        assert extras <= set(re.findall(r"^(\w+) = \[", known, re.M)), told
    elif program == "python":
        parse_python(rest, told)
    elif program == "curl":
        assert ask(rest).status_code == 200, told
    else:
        pytest.fail(f"{told}: say in test_docs.py how {program!r} is checked")


def parse_ours(arguments: list[str], told: str) -> None:
    named = next((a for a in arguments if not a.startswith("-")), "")
    with contextlib.redirect_stderr(io.StringIO()) as error:
        try:
            args = build_parser(named).parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{told}\n{error.getvalue()}")
    if named == "train":
        assert args.preset in PRESETS, told
        assert set(dict(args.set)) <= {*ModelConfig.__dataclass_fields__, *TrainConfig.__dataclass_fields__}, told


class Parsed(Exception):
    """A program read its arguments; it need not go on."""


def parse_python(rest: list[str], told: str) -> None:
    """A script or module of the repository reads its arguments with its own parser, and is stopped then."""
    name, arguments = (rest[1].replace(".", "/"), rest[2:]) if rest[0] == "-m" else (rest[0], rest[1:])
    path = ROOT / name / "__main__.py" if (ROOT / name).is_dir() else (ROOT / name).with_suffix(".py")
    if "ArgumentParser" not in path.read_text():
        return
    known = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser) -> None:
        known(parser, arguments)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as error:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit:
            pytest.fail(f"{told}\n{error.getvalue()}")
        except Parsed:
            return
    pytest.fail(f"{told} ran without reading its arguments")


def ask(rest: list[str]):
    """What a service in this process answers to curl."""
    form = dict(rest[i + 1].split("=", 1) for i, word in enumerate(rest) if word == "-F")
    path = re.sub(r"^https?://[^/]+", "", next(word for word in rest if word.startswith("http")))
    files = {k: (f"{k}.png", Path(v[1:]).read_bytes()) for k, v in form.items() if v.startswith("@")}
    data = {k: v for k, v in form.items() if not v.startswith("@")}
    with InProcess({"die": tiny_model()}) as service:
        return service.post(path, data=data, files=files) if form else service.get(path)


@every_page
def test_commands_in_sentences_exist(page):
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.M | re.S)
    for found in re.findall(r"`((?:aquamam|make|python -m benchmarks) [^`]+)`", text):
        program, name, *rest = found.split()
        if program != "aquamam":
            parse(found.split(), f"{page.name}: {found}")
        elif name != "COMMAND":  # a sentence may leave out what an option or a command needs, not invent one
            parser = build_parser(name)
            assert name.startswith("-") or name in COMMANDS, f"{page.name}: {found}"
            for word in [name, *rest]:
                commands = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
                parser = next((a.choices[word] for a in commands if word in a.choices), parser)
            options = {word.split("=")[0] for word in [name, *rest] if re.match(r"--?[a-z]", word)}
            assert options <= set(parser._option_string_actions), f"{page.name}: {found}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_help_are_right(name):
    lines = import_module(f"aquamam.cli.{name}").__doc__.split("\n\n")[1].splitlines()
    examples = [re.split(r"\s{2,}", line)[0] for line in lines]
    assert examples
    for example in examples:
        for command in commands_of(example):
            if command.words[0] != "curl":  # docs/serving.md has the same, with an image
                parse(command.words, f"aquamam {name} --help: {example}")


# --- the rest of a page -----------------------------------------------------------------------------------------------


def test_every_block_names_a_language_that_is_run_or_shown():
    left = [block.place for block in BLOCKS if block.language not in {"python", "sh", *SHOWN}]
    assert not left, f"name a language behind the fence of {left}"
    tests = (ROOT / "tests/test_export.py").read_text()
    assert all(page in tests for page in ELSEWHERE)


CHECK = """
#include <cstdio>
int main() {
  Rules r{15, 1, 0.7071067811865476, {0, 1, 2, 3}, BY_VOLUME};
  std::vector<int64_t> chosen(2);
  std::vector<float> logits(15);
  while (std::scanf("%ld %ld", &chosen[0], &chosen[1]) == 2) {
    for (float& x : logits) if (std::scanf("%f", &x) != 1) return 1;
    restrict_to_legal(r, chosen, logits.data());
    for (float x : logits) std::printf("%.6g ", x);
  }
}
"""


@pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")
@pytest.mark.parametrize("by_volume", [False, True])
def test_code_for_cpp_restricts_as_the_package_does(tmp_path, generator, by_volume):
    cells = Cells("atlas", 15, by_volume=by_volume)
    prefix = cells.locate(cells.chart.split(random_quat((60,), generator=generator, dtype=torch.float64)))[:, :2]
    logits = torch.randn(60, 15, generator=generator)
    (code,) = [block.text for block in BLOCKS if block.language == "cpp"]
    compiling = [COMPILER, "-std=c++17", "-Wall", "-Werror", "-x", "c++", "-", "-o", tmp_path / "check"]
    check = code + CHECK.replace("BY_VOLUME", str(by_volume).lower())
    subprocess.run(compiling, input=check, text=True, check=True)
    lines = "\n".join(" ".join(map(str, [*p.tolist(), *x.tolist()])) for p, x in zip(prefix, logits))
    found = subprocess.run([tmp_path / "check"], input=lines, text=True, capture_output=True, check=True).stdout
    got, want = torch.tensor([float(x) for x in found.split()]).reshape(60, 15), cells.restrict(logits, prefix)
    assert torch.equal(got.isfinite(), want.isfinite())
    assert torch.allclose(got[got.isfinite()], want[got.isfinite()], atol=1e-3)


def test_the_picture_of_the_readme_is_one_that_the_demo_writes():
    read = set(re.findall(r"out/demo/[\w-]+\.png", (ROOT / "README.md").read_text()))
    assert read
    assert read <= {f"out/demo/{name}-input.png" for name in VIEWS}


def test_the_table_from_equation_to_function_names_what_exists():
    text = (ROOT / "docs/concepts.md").read_text().split("## From equation to function")[1].split("\n## ")[0]
    cells = [row.split("|")[3] for row in text.splitlines() if row.startswith("|")][2:]
    found = [name for cell in cells for name in re.findall(r"`(\w+\.[\w.]+)`", cell)]
    assert len(found) >= len(cells) >= 15
    for name in found:
        thing = pkgutil.resolve_name(f"aquamam.{name}")
        assert callable(thing) or isinstance(thing, property), name


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_site_is_built_without_a_warning_and_needs_no_other_host(tmp_path):
    """`strict` in mkdocs.yml: a broken link, a page outside the menu or an unknown name of the reference ends it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len([page for page in PAGES if ROOT / "docs" in page.parents])
    for page in pages:
        text = page.read_text()
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]* (?:src|href)="(https?:)?//', text), page.name
        assert "arithmatex" not in text, f"a formula of {page.name} is not MathML"
