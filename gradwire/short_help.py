"""The text of `--help`: one screen for a first user. `--help all` has the rest."""

import ast
import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

FIRST = ("n_gpus", "epochs", "batch_size", "lr", "dataset", "model", "seed", "results_dir", "run_name")
"""Names of the options of every run that a first user needs, beside --strategy and --codec."""
_WIDTH, _INDENT = 100, 18


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for help, and not for all of it."""
    asks = [after for word, after in pairwise([*arguments, ""]) if word in ("-h", "--help")]
    return bool(asks) and "all" not in asks


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


def help_of(kind: type[Any], names: Sequence[str] | None = None) -> dict[str, str]:
    """Return the help of these options of a dataclass, or of all: the docstrings below its fields."""
    fields = [field.name for field in dataclasses.fields(kind)] if names is None else names
    texts = {name: text for owner in reversed(kind.__mro__) for name, text in _docstrings(owner).items()}
    return {name: texts.get(name, "") for name in fields}


@cache
def _docstrings(kind: type[Any]) -> dict[str, str]:
    if not dataclasses.is_dataclass(kind) or "__dataclass_fields__" not in vars(kind):
        return {}
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # made in an interpreter: there is no source
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }  # fmt: skip


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
