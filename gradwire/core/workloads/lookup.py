"""Finding the user's code of a workload, by `module:function` or as an object."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from gradwire.core.records.errors import UsageError, one_line


class UserObject(str):
    """The name, "module:name", of a function or class that an option was given in Python; it carries the object.

    Options hold it in place of the object: it is compared and recorded as the name that it is. Where it is sent to
    another process, the object is sent with it.
    """

    value: Callable[..., Any]

    def __new__(cls, name: str, value: Callable[..., Any]) -> Self:
        """Return the name of this object."""
        made = super().__new__(cls, name)
        made.value = value
        return made

    @classmethod
    def of(cls, option: str, value: Any) -> Self:
        """Return the name of what `option` was given. Raises UsageError if it is no function or class."""
        if not callable(value) or isinstance(value, torch.nn.Module):
            raise UsageError(
                f"{option}: is a {type(value).__name__}; give a name, or the function or class that makes it"
            )
        named = value if hasattr(value, "__qualname__") else type(value)  # a partial has no name of its own
        return cls(f"{named.__module__}:{named.__qualname__}{'' if named is value else '(...)'}", value)

    @property
    def is_importable(self) -> bool:
        """Whether another process finds the object by this name."""
        module, _, name = self.partition(":")
        return module != "__main__" and getattr(sys.modules.get(module), name, None) is self.value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.value)


def from_main(spec: str) -> str:
    """Return a name "__main__:name" with the object that this process has by it; any other name as it is.

    The ranks' processes have another `__main__`.
    """
    module, _, name = spec.partition(":")
    if module != "__main__" or isinstance(spec, UserObject) or not hasattr(sys.modules[module], name):
        return spec
    return UserObject(spec, getattr(sys.modules[module], name))


def import_user_object(option: str, spec: str) -> Any:
    """Import the user's object `spec` ("module:name"); the current directory is importable.

    A UserObject is not imported, but has its object. Raises UsageError, naming `option` and `spec`, if the module is
    absent or raises, or has no such name.
    """
    if isinstance(spec, UserObject):
        return spec.value
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
        if module_name == "__main__":
            raise UsageError(f"{option} {spec}: this program has no {name}; define it in a module, yourmodule:{name}")
        raise UsageError(f"{option} {spec}: {module.__file__} has no {name}; define it there")
    return getattr(module, name)


def call_user_function(option: str, spec: str, *args: Any, **options: Any) -> Any:
    """Call the user's function `spec` ("module:function"). Raises UsageError if there is none, or it raises."""
    function = import_user_object(option, spec)
    if not callable(function):
        raise UsageError(f"{option} {spec}: is no function; define it")
    given = f" with {', '.join(f'{name}={value!r}' for name, value in options.items())}" if options else ""
    with blamed_on(f"{option} {spec}{given}: it"):
        return function(*args, **options)


@contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Make whatever the user's code in the block raises, SystemExit too, a UsageError."""
    try:
        yield
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(f"{what} raised {one_line(error)}; correct it, or install what it needs") from error
