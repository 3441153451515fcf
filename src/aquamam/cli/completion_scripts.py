"""Completion of the command line in bash, zsh and fish: scripts made from the parser, which need no Python at the press of TAB."""

import argparse
import ast
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

# what an argument's value may be besides a file, by its destination: names are read from files, since importing them would import torch
NAMED = {
    "model": "models", "models": "models", "checkpoint": "models", "start": "models", "die": "models", "cylinder": "models",
    "preset": "presets", "object": "solids", "objects": "solids", "part": "solids", "data": "data",
}  # fmt: skip
FILES = ("FILE", "PNG", "CSV", "PATH", "IMAGE", "PAGE", "NAME.onnx", "JSON", "MESH", "VIDEO")
MANY = 999


@dataclass(frozen=True, kw_only=True)
class Argument:
    """What may stand at one place of a command."""

    names: tuple[str, ...]  # --json; none for what is known by its place
    help: str
    takes: int  # words after the option, or of the place; MANY for any number
    words: tuple[str, ...]
    files: str  # "file", "directory" or ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, or a command of a command."""

    path: tuple[str, ...]
    options: tuple[Argument, ...]
    places: tuple[Argument, ...]
    children: dict[str, str]  # name -> its line of help


def commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """A parser's commands, itself first."""
    options: list[Argument] = []
    places: list[Argument] = []
    children: dict[str, str] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            children |= {name: lines.get(name, "") for name in action.choices}
            below += list(action.choices.items())
        elif action.option_strings:
            options.append(_argument(action, path))
        else:
            places.append(_argument(action, path))
    yield Command(path=path, options=tuple(options), places=tuple(places), children=children)
    for name, child in below:
        yield from commands(child, (*path, name))


def _argument(action: argparse.Action, path: tuple[str, ...]) -> Argument:
    many = action.nargs in ("+", "*")
    takes = MANY if many else action.nargs if isinstance(action.nargs, int) else 1
    kind = "" if takes == 0 else NAMED.get(action.dest, "")
    words: tuple[str, ...] = tuple(map(str, action.choices)) if action.choices else names(kind)
    if path == ("info",) and kind == "models":
        words = tuple(sorted({*words, *names("presets")}))
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    files = ""
    if takes and not action.choices:
        if metavar == "DIR" or kind == "data":
            files = "directory"
        elif action.type is Path or metavar in FILES or kind in ("models", "solids"):
            files = "file"
    text = (action.help or "").replace("%%", "%")
    return Argument(names=tuple(action.option_strings), help=text, takes=takes, words=words, files=files)


def names(kind: str) -> tuple[str, ...]:
    """Names of the bundled models, the presets, the solids, or the solids as data to render."""
    if kind == "models":
        folder = resources.files("aquamam.checkpoints") / "weights"
        found = [f.name for f in folder.iterdir()] if folder.is_dir() else []
        return tuple(sorted(name.removesuffix(".safetensors") for name in found if name.endswith(".safetensors")))
    if kind == "presets":
        return _keys("presets.py", "PRESETS")
    if kind == "solids":
        return _keys("solids.py", "_MAKERS")
    return tuple(f"render:{name}" for name in names("solids")) if kind == "data" else ()


def _keys(file: str, table: str) -> tuple[str, ...]:
    """The keys of a dictionary that a module defines, without running the module."""
    tree = ast.parse((resources.files("aquamam") / file).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table:
            assert isinstance(node.value, ast.Dict)
            return tuple(str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))
    raise AssertionError(f"{file} has no dictionary {table}")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script for a shell."""
    makers: dict[str, Callable[[list[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
    return makers[shell](list(commands(parser)))


# --- bash -------------------------------------------------------------------------------------------------------------

BASH = r"""# bash completion of aquamam; put  source <(aquamam completion bash)  into ~/.bashrc
_aquamam_at() {{  # $1: the command; $2: an option, the number of a place, or "" for all options
  words="" files="" takes=0
  case "$1|$2" in
{table}
    *) return 1 ;;
  esac
}}
_aquamam() {{
  local words="" files="" takes=0 path="" place=1 left=0 option="" before="" cur word last i
  local -a said=()
  for ((i = 0; i <= COMP_CWORD; i++)); do  # bash breaks words at the colon of render:die and at =
    word="${{COMP_WORDS[i]}}"
    if ((i > 1)) && [[ $word == [=:]* || $last == [=:]* ]]; then said[${{#said[@]}}-1]+="$word"; else said+=("$word"); fi
    last="$word"
  done
  for ((i = 1; i < ${{#said[@]}} - 1; i++)); do
    word="${{said[i]}}"
    if [[ $word == -?* ]]; then
      left=0 option="$word"
      [[ $word != *=* ]] && _aquamam_at "$path" "$word" && left=$takes
    elif ((left > 0)); then
      ((left--))
    elif _aquamam_at "$path${{path:+ }}$word" ""; then
      path="$path${{path:+ }}$word" place=1
    else
      ((place++))
    fi
  done
  local whole="${{said[${{#said[@]}}-1]}}"
  cur="$whole"
  if [[ $cur == --*=* ]]; then
    before="${{cur%%=*}}=" cur="${{cur#*=}}"
    _aquamam_at "$path" "${{before%=}}"
  elif [[ $cur == -* ]]; then
    _aquamam_at "$path" ""
  elif ((left > 0)); then
    _aquamam_at "$path" "$option"
  else
    _aquamam_at "$path" "$place"
  fi
  local IFS=$' \t\n'
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [[ -n $files ]]; then
    cur="${{cur#[\'\"]}}" cur="${{cur//\\/}}" IFS=$'\n'
    COMPREPLY+=($(compgen "-${{files:0:1}}" -- "$cur"))
    compopt -o filenames 2>/dev/null
  fi
  # bash replaces only what follows its last break
  local kept="${{whole%"$last"}}"
  [[ $last == [=:] ]] && kept="$whole"
  kept="${{kept#"$before"}}"
  for i in "${{!COMPREPLY[@]}}"; do COMPREPLY[i]="${{COMPREPLY[i]#"$kept"}}"; done
}}
complete -F _aquamam aquamam
"""


def bash(tree: list[Command]) -> str:
    lines = []

    def row(path: tuple[str, ...], keys: list[str], argument: Argument | None, words: tuple[str, ...]) -> None:
        pattern = " | ".join(f'"{" ".join(path)}|"{key}' for key in keys)
        takes, files = (argument.takes, argument.files) if argument else (0, "")
        lines.append(
            f"    {pattern}) words={shlex.quote(' '.join(words))} files={files or chr(39) * 2} takes={takes} ;;"
        )

    for command in tree:
        row(command.path, [""], None, tuple(name for option in command.options for name in option.names))
        for option in command.options:
            row(command.path, [shlex.quote(name) for name in option.names], option, option.words)
        for number, place in enumerate(command.places, 1):
            row(command.path, ["[0-9]*" if place.takes == MANY else str(number)], place, place.words)
        if command.children:
            row(command.path, ["1"], None, tuple(command.children))
    return BASH.format(table="\n".join(lines))


# --- zsh --------------------------------------------------------------------------------------------------------------


def zsh(tree: list[Command]) -> str:
    parts = [
        "#compdef aquamam",
        "# zsh completion of aquamam; put  source <(aquamam completion zsh)  into ~/.zshrc, after compinit",
    ]
    parts.append('_aquamam_either() {\n  compadd -- "${@:2}"\n  ${=1}\n}')
    for command in tree:
        specs = []
        for option in command.options:
            value = (":value:" + _zsh_values(option)) if option.takes else ""
            if option.takes == MANY:
                value = ":*" + value
            for name in option.names:
                specs.append(shlex.quote(f"{name}[{_zsh_text(option.help)}]{value}"))
        for number, place in enumerate(command.places, 1):
            specs.append(shlex.quote(f"{'*' if place.takes == MANY else number}:argument:{_zsh_values(place)}"))
        lines = [f"{_zsh_name(command.path)}() {{"]
        if command.children:
            lines += ["  local state line", "  typeset -A opt_args", "  local -a commands"]
            lines += ["  commands=("]
            lines += [f"    {shlex.quote(f'{name}:{line}')}" for name, line in command.children.items()]
            lines += ["  )", "  _arguments -C \\"]
            lines += [f"    {spec} \\" for spec in specs]
            lines += ["    '1:command:->command' \\", "    '*::argument:->rest'", "  case $state in"]
            lines += ["    command) _describe command commands ;;", "    rest)", "      case $line[1] in"]
            lines += [f"        {name}) {_zsh_name((*command.path, name))} ;;" for name in command.children]
            lines += ["      esac ;;", "  esac"]
        else:
            lines += ["  _arguments \\", *(f"    {spec} \\" for spec in specs[:-1]), f"    {specs[-1]}"]
        parts.append("\n".join([*lines, "}"]))
    parts.append('if [[ $funcstack[1] == _aquamam ]]; then _aquamam "$@"; else compdef _aquamam aquamam; fi')
    return "\n\n".join(parts) + "\n"


def _zsh_name(path: tuple[str, ...]) -> str:
    return "_" + "_".join(["aquamam", *path]).replace("-", "_")


def _zsh_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def _zsh_values(argument: Argument) -> str:
    words = " ".join(word.replace(":", "\\:") for word in argument.words)
    files = {"file": "_files", "directory": "_files -/", "": ""}[argument.files]
    if words and files:
        return f" _aquamam_either '{files}' {words}"  # after a blank zsh adds no arguments of its own
    return f"({words})" if words else files or " "


# --- fish -------------------------------------------------------------------------------------------------------------

FISH = """# fish completion of aquamam; put  aquamam completion fish | source  into ~/.config/fish/config.fish
function __aquamam_at
    # whether the words before the cursor lead to this command: its names, and then the names of its own commands
    set -l said (commandline -opc)
    set -e said[1]
    set -l path (string split -n ' ' -- $argv[1])
    for name in $path
        while set -q said[1]; and string match -q -- '-*' $said[1]
            set -e said[1]
        end
        set -q said[1]; and test $said[1] = $name; or return 1
        set -e said[1]
    end
    for word in $said
        contains -- $word $argv[2..]; and return 1
    end
    return 0
end
complete -c aquamam -f
"""


def fish(tree: list[Command]) -> str:
    lines = []
    for command in tree:
        at = shlex.quote(" ".join(["__aquamam_at", shlex.quote(" ".join(command.path)), *command.children]))
        for name, line in command.children.items():
            lines.append(f"complete -c aquamam -n {at} -a {name} -d {_fish_quote(line)}")
        for option in command.options:
            flags = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            lines.append(f"complete -c aquamam -n {at} {flags} {_fish_values(option)} -d {_fish_quote(option.help)}")
        for place in command.places:
            lines.append(f"complete -c aquamam -n {at} {_fish_values(place)}")
    return FISH + "\n".join(line.replace("  ", " ").rstrip() for line in lines) + "\n"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_values(argument: Argument) -> str:
    parts = []
    if argument.takes and argument.names:
        parts.append("-r")
    if argument.files == "file":
        parts.append("-F")
    elif argument.files == "directory":
        parts.append("-f -a '(__fish_complete_directories)'")
    elif argument.takes and argument.names:
        parts.append("-f")
    if argument.words:
        parts.append(f"-a {_fish_quote(' '.join(argument.words))}")
    return " ".join(parts)
