"""How a rank fails."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.core.launchers.launcher import Job
from gradwire.core.records.errors import EQUAL_STEPS, RunFailed, UsageError, text_of
from gradwire.core.transports.base import CLOSED, Transport
from gradwire.core.transports.inbox import ANY, STEPS_TAKEN
from gradwire.core.transports.messages import OutOfSharedMemory, PeerLost, WaitTimeout

_OWN_LOOP = f"in a loop of your own {EQUAL_STEPS}; a parameter server lets workers finish one by one"


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    `kind`: usage (bad input), stopped (training cannot go on), raised (an exception), died (the process ended), silent
    (no heartbeat), timeout or lost_peer (it waited for `waited_for`, from `ranks`, and did not get it), busy (it lives,
    but does not notice that others have failed).
    """

    kind: str
    message: str = ""
    waited_for: str = ""
    ranks: tuple[int, ...] = ()
    trace: str = ""


def do_work(job: Job, transport: Transport, report: Callable[[Any], None] | None) -> Any:
    """Do the work of one rank and return its result; pass `report` to it if the job has reports. Raises RunFailed."""
    result = job.work(transport, *([report] if job.on_report else []), *job.args)
    if transport.owes:
        raise RunFailed(
            f"rank {transport.rank} ended after step() without {transport.owes}, which sends what is unsent and "
            "averages the buffers; let its loop end with it"
        )
    return result


def with_advice(text: str) -> str:
    """Return the text of a failure with the advice that it calls for: on a rank that ended while others waited."""
    return f"{text}: {_OWN_LOOP}" if CLOSED in text or f"'{STEPS_TAKEN}'" in text else text


def failure_of(error: BaseException, ranks: Sequence[int]) -> Failure:
    """Return how a rank failed whose work raised this; `ranks` are all, also itself. Call it where it is handled."""
    if isinstance(error, UsageError):
        return Failure("usage", str(error))
    if isinstance(error, RunFailed | OutOfSharedMemory):
        return Failure("stopped", str(error))
    if isinstance(error, PeerLost):
        return Failure("lost_peer", str(error), error.what, tuple(ranks) if error.rank == ANY else (error.rank,))
    if isinstance(error, WaitTimeout):
        return Failure("timeout", str(error), error.what, error.ranks)
    return Failure("raised", f"{type(error).__name__}: {text_of(error)}", trace=traceback.format_exc())
