"""The help of options: the docstrings below the fields of a dataclass."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

FIRST = ("n_gpus", "epochs", "batch_size", "lr", "dataset", "model", "seed", "results_dir", "run_name")
"""Names of the options of every run that a first user needs, beside --strategy and --codec."""


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for help, and not for all of it."""
    asks = [after for word, after in pairwise([*arguments, ""]) if word in ("-h", "--help")]
    return bool(asks) and "all" not in asks


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
