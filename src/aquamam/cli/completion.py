"""`aquamam completion`: a script with which a shell completes commands, options, names and files."""

import argparse

HELP = "Print a script with which bash, zsh or fish completes aquamam's commands, options, models and files."
EXAMPLES = """  source <(aquamam completion bash)        now; for every shell, put this line into ~/.bashrc
  source <(aquamam completion zsh)         in ~/.zshrc, after compinit
  aquamam completion fish > ~/.config/fish/completions/aquamam.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell to write for")


def run(args: argparse.Namespace) -> int:
    from aquamam.cli.completion_scripts import script

    print(script(args.shell, args.build_parser()), end="")
    return 0
