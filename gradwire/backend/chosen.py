"""The all-reduce of a group: one of `strategies/all_reduce/`, or the user's own."""

import os
from importlib import import_module
from typing import Any

import torch

from gradwire.backend.collectives import SumUp
from gradwire.backend.transport import GroupTransport
from gradwire.core.records.errors import UsageError, nearest
from gradwire.strategies import predictions

VARIABLE = "GRADWIRE_ALL_REDUCE"
_DEFAULT = "ring"


def chosen_all_reduce() -> SumUp:
    """Return that which the environment names. Raises UsageError."""
    name = os.environ.get(VARIABLE, _DEFAULT)
    known: dict[str, Any] = predictions.all_reduces()
    found = _of_the_user(name) if ":" in name else known.get(name)
    if found is None:
        raise UsageError(
            f"{VARIABLE}={name}: is no all-reduce; {nearest(name, [*known])}there are {', '.join(known)}, and "
            "MODULE:NAME of your own"
        )
    if isinstance(found, type):
        strategy: Any = found()

        def sum_up(vector: torch.Tensor, transport: GroupTransport) -> None:
            transport.lend(vector)
            strategy.transport = transport
            strategy.all_reduce(vector, 0)
    else:

        def sum_up(vector: torch.Tensor, transport: GroupTransport) -> None:
            transport.lend(vector)
            found(vector, transport)

    return sum_up


def _of_the_user(name: str) -> Any:
    """Return the class or function MODULE:NAME. Raises UsageError."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{VARIABLE}={name}: {error}; give MODULE:NAME, a strategy or a function") from error
    if not callable(found):
        raise UsageError(f"{VARIABLE}={name}: is neither a strategy nor a function of (vector, transport)")
    return found
