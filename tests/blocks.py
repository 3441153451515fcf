"""Code blocks of the documentation: finding them, and taking shell commands apart."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("sh", "bash", "console")
ENDS = ("|", "&&", ";", ">")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list["Command"]:
        """Of a shell block: commands in their order, comments left out, continued lines joined."""
        text = self.text.replace("\\\n", " ")
        if self.language == "console":  # what does not follow a prompt is what was printed
            text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
        return [command for line in text.splitlines() for command in commands_of(line)]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a line, and what becomes of its output."""

    words: list[str]
    end: str  # "", "|" or ">", "&&" and ";" are ""
    target: str = ""  # of >


def commands_of(line: str) -> list[Command]:
    """The commands of a line."""
    line = re.sub(r"<\((.*?)\)", r"\1", line)  # source <(command): the command is what matters
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    found: list[Command] = []
    words: list[str] = []
    tokens = list(lexer)
    while tokens:
        token = tokens.pop(0)
        if token not in ENDS:
            words.append(token)
            continue
        target = tokens.pop(0) if token == ">" else ""
        found.append(Command(words=words, end=token if token in "|>" else "", target=target))
        words = []
    return [*found, Command(words=words, end="")] if words else found


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, those in lists too."""
    found, opened, start, kept = [], "", 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"^( *)```(.*)$", line)
        if fence and not opened:
            opened, language, start, kept = fence[1] + "```", fence[2].strip(), number, []
        elif opened and line.rstrip() == opened:
            text = "\n".join(kept) + "\n"
            found.append(Block(page=page, line=start, language=language, text=text))
            opened = ""
        elif opened:
            kept.append(line.removeprefix(opened[:-3]))
    assert not opened, f"{page.name}:{start} opens a block that does not end"
    return found


def inline_commands(page: Path) -> list[str]:
    """What stands in backticks and begins like a command of ours."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.M | re.S)
    return re.findall(r"`((?:aquamam|make) [^`]+)`", text)
