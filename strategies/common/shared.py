"""What strategies whose ranks read or write one x in shared memory need of a run."""

from records.errors import UsageError
from strategies.common.base import RunSize


def check_shared_memory(name: str, run: RunSize) -> None:
    """Check that the ranks of strategy `name` share memory, and that nothing is asked which only messages can have.

    Raises UsageError.
    """
    if not run.shared_memory:
        raise UsageError(f"--strategy {name}: needs shared memory; run it without torchrun, in real time")
    if run.held_back:
        raise UsageError(
            f"--bandwidth, --latency: the workers of {name} read x in shared memory, where no network can hold it "
            "back; leave them out"
        )
    if run.replayed:
        raise UsageError("--replay: that run has inconsistent reads, which no order of messages decides")
