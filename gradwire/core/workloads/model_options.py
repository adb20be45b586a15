"""The values of --model_options."""

import ast
import inspect
from collections.abc import Callable
from typing import Any

from gradwire.core.records.errors import UsageError


def options_for(name: str, text: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the --model_options `text`, NAME=VALUE,... of the model `name`: parameters of its function after two.

    Each is of the type of its default. Raises UsageError.
    """
    values = _parsed(text)
    try:
        parameters = list(inspect.signature(function).parameters.values())[2:]
    except (TypeError, ValueError):  # it does not tell
        return values
    known = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    for key, value in values.items():
        any_name = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
        if not (_fits(value, known[key]) if key in known else any_name):
            takes = ", ".join(map(str, parameters)) or "none"
            raise UsageError(f"--model_options {key}={value!r}: --model {name} takes {takes}")
    return values


def _fits(value: object, default: object) -> bool:
    kinds = (int, float) if type(default) is float else (type(default),)
    return type(value) in kinds or type(default) not in (bool, int, float, str)


def _parsed(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"model({text})", mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
            if len(values) == len(call.keywords):
                return values
    except (ValueError, SyntaxError):
        pass
    raise UsageError(
        f"--model_options {text}: must be NAME=VALUE,NAME=VALUE, each once, with values as in Python: 4, True, 'text'"
    )
