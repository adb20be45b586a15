"""Why a run failed, in one message: the rank at fault, its role, and what the others were waiting for."""

from collections.abc import Mapping, Sequence

from gradwire.core.launchers.failures import Failure, with_advice
from gradwire.core.records.errors import RunFailed

# What counts as the cause when several ranks failed: the first of these kinds.
_CAUSES = ("usage", "stopped", "died", "raised", "silent", "timeout", "lost_peer", "busy")
_WAITS = ("timeout", "lost_peer")


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
