"""The text of `--help`: one screen for a first user. `--help all` has the rest."""

import dataclasses
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gradwire.command_line import about
from gradwire.core.strategy.strategy import Strategy
from gradwire.help_texts import help_of
from gradwire.options import Options

_WIDTH, _INDENT = 100, 18


def help_of_run(
    default: Options, builtin: Strategy | None, description: str, is_chosen: bool, first: Sequence[str], kinds: Any
) -> str:
    """Return the text of --help: examples, or the strategy and codec that are chosen with their own options."""
    title, *lines = description.splitlines()
    text = [line for line in lines if line.startswith(("python ", "torchrun ", "mpirun "))]
    if is_chosen:
        text = about(default).split("\n\n")
    options: list[tuple[str, str, Any]] = []
    for owner in default.chosen.values() if is_chosen or builtin else ():
        options += [(name, text, getattr(owner, name)) for name, text in help_of(type(owner)).items()]
    for name, choice in Options.choices().items():
        if not is_chosen and not (builtin and name == "strategy"):
            options.append((name, choice.help, default.chosen[name].name))
    own = {option.name: option.default for option in dataclasses.fields(kinds[0])}
    texts = {name: text for kind in kinds for name, text in help_of(kind).items()}
    options += [(name, texts[name], own[name] if name in own else getattr(default, name)) for name in first]
    return short_help(title, text, options)


def short_help(title: str, about: Sequence[str], options: Iterable[tuple[str, str, Any]]) -> str:
    """Return the text: the command's description, examples or other lines, and each option's name, help and default."""
    width, program = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns), _program()
    lines = [f"usage: {program} [OPTIONS]", "", *textwrap.wrap(title, width), ""]
    for line in about:
        lines += [_as_called(line, program)] if "  #" in line else textwrap.wrap(_as_called(line, program), width)
    lines.append("")
    for name, text, default in options:
        flag = f"--{name}, --no_{name}" if default is True else f"--{name}"
        known = f" (default: {default})" if default not in (None, False, "", ()) else ""
        begin = f"  {flag}".ljust(_INDENT - 2) + "  "
        lines += textwrap.wrap(begin + text + known, width, subsequent_indent=" " * _INDENT, break_on_hyphens=False)
    return "\n".join([*lines, "", f"All options: {program} --help all"])


def _program() -> str:
    """Return how this command is called: "gradwire train", "python -m gradwire train" or "python train.py"."""
    program = sys.argv[0]
    return f"python {Path(program).name}" if program.endswith(".py") else program


def _as_called(text: str, program: str) -> str:
    """Return an example called as this program is: without the scripts that only a clone has."""
    if not (command := re.match(r".*gradwire(?= )", program)):
        return text
    text = re.sub(r"python (\w+)\.py", rf"{command[0]} \1", text)
    return re.sub(r"^(torchrun .*?) (\w+)\.py", r"\1 -m gradwire \2", text)
