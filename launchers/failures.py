"""Why a run failed, told in one message: the rank at fault, its role, and what the others were waiting for."""

from collections.abc import Sequence
from dataclasses import dataclass

from records.errors import RunFailed

# What counts as the cause when several ranks failed: the first of these kinds.
_CAUSES = ("usage", "stopped", "died", "raised", "silent", "timeout", "lost_peer")


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    `kind`: usage (bad input), stopped (training cannot go on), raised (an exception), died (the process ended), silent
    (no heartbeat), timeout or lost_peer (it waited for `waited_for` in vain).
    """

    kind: str
    message: str = ""
    waited_for: str = ""
    trace: str = ""


def explain(failures: dict[int, Failure], roles: Sequence[str], timeout: float) -> RunFailed:
    """Return the error for the user: the cause first, then what the other ranks were waiting for."""
    rank = min(failures, key=lambda rank: _CAUSES.index(failures[rank].kind))
    cause = failures[rank]
    if cause.kind == "usage":
        return RunFailed(cause.message, exit_code=2)
    name = f"rank {rank} ({roles[rank]})"
    text = {
        "stopped": f"{name}: {cause.message}",
        "died": f"{name} {cause.message}",
        "raised": f"{name} raised {cause.message}",
        "silent": f"{name} has not answered for more than {timeout:g} s (--timeout): stopped, or out of memory",
        "timeout": f"{name} waited {timeout:g} s for {cause.waited_for}: if a step takes that long, raise --timeout",
        "lost_peer": f"{name} {cause.message}",
    }[cause.kind]
    waits = [
        f"rank {other} ({roles[other]}) waited for {failure.waited_for}"
        for other, failure in sorted(failures.items())
        if other != rank and failure.waited_for
    ]
    if waits and cause.kind != "stopped":
        text += "; meanwhile " + ", ".join(waits)
    return RunFailed(text + (f"\n{cause.trace}" if cause.trace else ""))
