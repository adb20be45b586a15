"""What the operating system allows one process."""

import os
import resource

from records.errors import UsageError


def allow_open_files(needed: int, why: str) -> None:
    """Allow this process so many open files beside those it has. Raises UsageError, which begins with `why`."""
    needed += len(os.listdir("/dev/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UsageError(f"{why}: needs {needed} open files, but the limit is {hard}; take fewer")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
