"""A cluster of Dask with three workers for the tests, in a process of its own, until its standard input is closed."""

import sys
from typing import Any

QUIET: dict[str, Any] = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}


def serve() -> None:
    """Print the address of the scheduler, and wait."""
    from dask import config
    from distributed import LocalCluster

    like_ours = {"distributed.worker.multiprocessing-method": "forkserver", "distributed.worker.daemon": False}
    with config.set(like_ours), LocalCluster(n_workers=3, threads_per_worker=1, **QUIET) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve()
