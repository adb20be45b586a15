"""The options of a model, `--model_options layers=4,width=128`, checked against those that its function takes."""

import ast
import inspect
from collections.abc import Callable
from typing import Any

from records.errors import UsageError, nearest
from workloads.gpt import gpt
from workloads.lookup import import_user_object


def options_for(name: str, text: str) -> dict[str, Any]:
    """Return the options of the model `name` in `text`, NAME=VALUE,... with values as in Python.

    They are the function's parameters after the first two, each of the type of its default. Raises UsageError.
    """
    if not text:
        return {}
    if name != "gpt" and ":" not in name:
        raise UsageError(f"--model_options {text}: --model {name} has none; leave it out, or take --model gpt")
    values = _parsed(text)
    takes = _takes(gpt if name == "gpt" else import_user_object("--model", name))
    if takes is None:
        return values
    for key, value in values.items():
        if key not in takes:
            known = ", ".join(takes)
            has = f"{nearest(key, takes)}there are {known}" if takes else "it has none"
            raise UsageError(f"--model_options {key}={value!r}: --model {name} has no such option; {has}")
        kind = type(takes[key])
        if kind in (bool, int, float, str) and type(value) not in ((int, float) if kind is float else (kind,)):
            raise UsageError(
                f"--model_options {key}={value!r}: --model {name} takes {kind.__name__} for it, such as {takes[key]!r}"
            )
    return values


def _parsed(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"model({text})", mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (ValueError, SyntaxError):
        pass
    raise UsageError(
        f"--model_options {text}: must be NAME=VALUE,NAME=VALUE, each name once, each value as in Python: 4, 0.1, "
        "True, 'text'"
    )


def _takes(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the options of a model's function, each with its default; None: it takes any, or does not tell."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[2:]
    except (TypeError, ValueError):
        return None
    if any(one.kind == one.VAR_KEYWORD for one in parameters):
        return None
    return {one.name: one.default for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
