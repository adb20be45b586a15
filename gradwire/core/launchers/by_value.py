"""Pickling for ranks that never import the script or notebook that starts them: its definitions travel as code."""

import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import cloudpickle

from gradwire.core.records.errors import UsageError, one_line


class _Pickler(cloudpickle.Pickler):
    """Takes functions and classes of `__main__` by value; tensors and pipes as multiprocessing does, without a copy."""

    # On the class, where Python's own pickler looks for it; the ChainMap also finds later registrations.
    dispatch_table = ChainMap(cloudpickle.Pickler.dispatch_table, ForkingPickler(io.BytesIO()).dispatch_table)


def dumps(value: Any, whom: str, pickler: type[cloudpickle.Pickler] = cloudpickle.Pickler) -> bytes:
    """Pickle the work of a run and its arguments by value; `whom` names the receivers in errors. Raises UsageError."""
    file = io.BytesIO()
    try:
        pickler(file).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"cannot send the work and its arguments to {whom}: {one_line(error)}; "
            "make in the work itself what cannot be sent, such as open files, locks and connections"
        ) from error
    return file.getvalue()


@dataclass
class ByValue:
    """`function(*args)`, to be called in another process."""

    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self) -> Any:
        """Call the function."""
        return self.function(*self.args)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _load, (dumps((self.function, self.args), "another process", _Pickler),)


def _load(data: bytes) -> ByValue:
    return ByValue(*pickle.loads(data))


@contextmanager
def hidden_main() -> Iterator[None]:
    """In the block, multiprocessing does not see `__main__`: a process that is started does not run it again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
