"""The errors that every room may raise, and how a caught exception or an unknown name is put into one."""

import dataclasses
import difflib
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Kinds = type[BaseException] | tuple[type[BaseException], ...]
EQUAL_STEPS = "every rank must take the same number of steps"


class UsageError(ValueError):
    """Bad input from the user; the message is one line that names the option and the cure."""


class RunFailed(RuntimeError):
    """The run cannot continue; `str()` is a message for the user, `exit_code` what the script ends with."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def one_line(error: BaseException) -> str:
    """Return an exception as `Type: message` on a single line."""
    return " ".join(f"{type(error).__name__}: {text_of(error)}".split()).removesuffix(":")


@contextmanager
def as_usage_error(what: str, cure: str = "", kinds: Kinds = Exception) -> Iterator[None]:
    """Make an exception of the block, of these kinds, a UsageError: WHAT (the exception)CURE."""
    try:
        yield
    except kinds as error:
        raise UsageError(f"{what} ({one_line(error)}){cure}") from error


def import_extra(module: str, option: str, package: str, extra: str, more: str = "") -> Any:
    """Import a module of a `package` that `option` needs and `extra` installs. Raises UsageError; `more`: its end."""
    with as_usage_error(f"{option}: needs {package}", f"; pip install -e '.[{extra}]'{more}"):
        return importlib.import_module(module)


def text_of(error: BaseException) -> str:
    """Return the text of an exception; "" if it is of a class whose `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean X? ", X being the known name that is most like `name`; "" if there is none."""
    known = list(known)
    beginning = [candidate for candidate in known if name and candidate.startswith(name)]
    found = beginning or difflib.get_close_matches(name, known, 1, 0.5)
    return f"did you mean {found[0]}? " if found else ""


def unknown(option: str, name: str, known: Iterable[str], own: str = "") -> UsageError:
    """Make the error for a name that is not among the known ones; `own`: how one of the user's own is written."""
    known = list(known)
    others = f", and {own}" if own else ""
    return UsageError(f"{option} {name}: unknown; {nearest(name, known)}there are {', '.join(known)}{others}")


def between(options: Any, option: str, low: float, high: float | None = None, why: str = "") -> None:
    """Check that `low` <= the option of a dataclass <= `high`.

    Raises UsageError; for `high`, not of a default, which the user has not typed.
    """
    value = getattr(options, option)
    default = next(field.default for field in dataclasses.fields(options) if field.name == option)
    if not value >= low:
        raise UsageError(f"--{option} {value}: must be at least {low}")
    if high is not None and not value <= high and value != default:
        raise UsageError(f"--{option} {value}: must be at most {high}{', ' + why if why else ''}")


def one_of(options: Any, option: str, known: Iterable[str]) -> None:
    """Check that the option of a dataclass is one of the `known` words. Raises UsageError."""
    value, known = getattr(options, option), list(known)
    if value not in known:
        raise unknown(f"--{option}", value, known)
