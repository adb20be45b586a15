"""Finding the code that a workload names: the user's `module:function`, and torchvision."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from records.errors import UsageError, one_line


def import_torchvision(option: str) -> ModuleType:
    """Import torchvision for `option` (such as `--model resnet18`). Raises UsageError if it does not fit this torch."""
    try:
        return importlib.import_module("torchvision")
    except (Exception, SystemExit) as error:  # of many kinds, if it was built for another torch
        raise UsageError(
            f"{option}: needs torchvision, which is missing or does not match this torch ({one_line(error)}); "
            "install the two together: pip install torch torchvision"
        ) from error


def import_user_object(option: str, spec: str) -> Any:
    """Import what the user calls `spec` ("module:name"); the current directory is importable.

    Raises UsageError, naming `option` and `spec`, if the module is absent or raises, or has no such name.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise UsageError(f"{option} {spec}: write it as yourmodule:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with blamed_on(f"{option} {spec}: importing {module_name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise UsageError(
                f"{option} {spec}: there is no module {module_name}; put {module_name}.py in the current directory, "
                f"and leave .py out of {option}"
            ) from error
    if not hasattr(module, name):
        raise UsageError(f"{option} {spec}: {module.__file__} has no {name}; define it there")
    return getattr(module, name)


def call_user_function(option: str, spec: str, *args: Any) -> Any:
    """Call the user's function `spec` ("module:function"). Raises UsageError if there is none, or it raises."""
    function = import_user_object(option, spec)
    if not callable(function):
        raise UsageError(f"{option} {spec}: is no function; define it")
    with blamed_on(f"{option} {spec}: it"):
        return function(*args)


@contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Make whatever the user's code in the block raises, SystemExit too, a UsageError."""
    try:
        yield
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(f"{what} raised {one_line(error)}; correct it, or install what it needs") from error
