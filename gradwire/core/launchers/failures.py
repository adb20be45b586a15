"""Why a run failed, in one message: the rank at fault, its role, and what the others were waiting for."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.core.launchers.launcher import Job
from gradwire.core.records.errors import EQUAL_STEPS, RunFailed, UsageError, text_of
from gradwire.core.transports.base import CLOSED, Transport
from gradwire.core.transports.inbox import ANY, STEPS_TAKEN
from gradwire.core.transports.messages import OutOfSharedMemory, PeerLost, WaitTimeout

# What counts as the cause when several ranks failed: the first of these kinds.
_CAUSES = ("usage", "stopped", "died", "raised", "silent", "timeout", "lost_peer", "busy")
_WAITS = ("timeout", "lost_peer")
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


def explain(
    failures: dict[int, Failure], roles: Sequence[str], timeout: float, deaths: Mapping[int, Failure] | None = None
) -> RunFailed:
    """Return the error for the user: the cause first, then what the other ranks were waiting for.

    Among ranks that waited for each other, the cause is the one that did not wait. `deaths` are those of ranks
    without which the run could continue.
    """
    rank = min(failures, key=lambda rank: _CAUSES.index(failures[rank].kind))
    cause = failures[rank]
    if cause.kind in _WAITS:
        rank, cause = _end_of_the_wait(rank, failures, deaths or {})
    if cause.kind == "usage":
        return RunFailed(cause.message, exit_code=2)
    name = f"rank {rank} ({roles[rank]})"
    text = {
        "stopped": f"{name}: {cause.message}",
        "raised": f"{name} raised {cause.message}",
        "silent": f"{name} has not answered for more than {timeout:g} s (--timeout): stopped, or out of memory",
        "timeout": f"{name} waited {timeout:g} s for {cause.waited_for}: if a step takes that long, raise --timeout",
        "busy": f"{name} kept others waiting and did not wait for any rank: it hangs, or if a step takes that long, "
        "raise --timeout",
    }.get(cause.kind, f"{name} {cause.message}")  # died, lost_peer
    waits = [
        f"rank {other} ({roles[other]}) waited for {failure.waited_for}"
        for other, failure in sorted(failures.items())
        if other != rank and failure.waited_for
    ]
    if waits and cause.kind != "stopped":
        text += "; meanwhile " + ", ".join(waits)
    return RunFailed(with_advice(text) + (f"\n{cause.trace}" if cause.trace else ""))


def _end_of_the_wait(rank: int, failures: Mapping[int, Failure], deaths: Mapping[int, Failure]) -> tuple[int, Failure]:
    """Return the one that did not wait among those that `rank` waited for, they waited for, and so on; else `rank`."""
    seen = {rank: failures[rank]}
    queue = [failures[rank]]
    while queue:
        failure = queue.pop()
        # One that was started again may have failed once more: lost is its first life, waited for its last.
        first, then = (deaths, failures) if failure.kind == "lost_peer" else (failures, deaths)
        for peer in failure.ranks:
            found = first.get(peer) or then.get(peer)
            if found and peer not in seen:
                seen[peer] = found
                queue.append(found)
    ends = {peer: found for peer, found in seen.items() if found.kind not in _WAITS} or {rank: failures[rank]}
    culprit = min(ends, key=lambda peer: _CAUSES.index(ends[peer].kind))
    return culprit, ends[culprit]
