"""What the contract suite asks of whoever starts ranks, so that it can try any kind of transport."""

import importlib
from collections.abc import Callable
from typing import Any

LIMIT = 300.0  # seconds; bounds every wait, and is reached only if something is broken
NOT_TOLD, TOLD, SURVIVED = range(3)


class Engine:
    """Starts ranks that talk over one kind of transport. Derive from it to put a transport through its contract:

        pytest tests/core/transports/contract --transport yourmodule:YourEngine

    What a transport cannot do is said here, and then not asked of it.
    """

    in_place = False
    """Whether a slice of an allocated vector is read in its sender's memory, until the message is released."""
    real_time = True
    """Whether the ranks run side by side by the clock on the wall: one may wait for a file that another makes."""
    deaths = NOT_TOLD
    """What ranks see of the death of another: nothing (NOT_TOLD), a PeerLost from every wait (TOLD), or a PeerLost from
    waits for that one only (SURVIVED). Unless it is NOT_TOLD, `run_with_deaths` is called."""

    def run(self, check: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
        """Call `check(transport, *args)` on each of `world_size` ranks; return what each returned, in rank order.

        The transports' `timeout` is LIMIT, and they are closed afterwards, also when a check fails; then raise an
        error. With `record` their recorders are enabled. World sizes are 2 and 3.
        """
        raise NotImplementedError

    def run_with_deaths(self, check: Callable[..., Any], world_size: int, *args: Any) -> dict[int, Any]:
        """Like `run`, for a check in which ranks end their process; return by rank what the others returned."""
        raise NotImplementedError


def import_engine(name: str) -> Engine:
    """Return an instance of the engine `yourmodule:YourEngine`."""
    module, _, attribute = name.partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    if not (isinstance(kind, type) and issubclass(kind, Engine)):
        raise TypeError(f"--transport {name}: not a kind of tests.engines.Engine")
    return kind()
