"""The names of shared memory in /dev/shm, which torch removes as soon as a segment is open: some are left."""

from pathlib import Path


def remove_segments(pid: int) -> None:
    """Remove the names that a process has left: killed while it opened them, or because there was not enough memory."""
    for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
        path.unlink(missing_ok=True)
