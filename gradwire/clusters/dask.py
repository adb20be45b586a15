"""Let Dask place the ranks, one in each worker: on workers of its own on this machine, or on those of a cluster.

This process is Dask's client: it sends the work to the workers and gets the results, see `dask_ranks.py`.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gradwire.core.launchers.by_value import dumps, hidden_main
from gradwire.core.launchers.environment import environment
from gradwire.core.launchers.fork_server import start_context, starting, warm_up
from gradwire.core.launchers.launcher import Job, Launcher
from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.core.records.interrupts import interrupts_wait

if TYPE_CHECKING:
    from distributed import Client

_CONFIG = {  # of workers on this machine
    "distributed.nanny.pre-spawn-environ": {},  # numbers of threads, which a rank sets itself
    "distributed.worker.daemon": False,  # a rank may start processes that load its data
    "distributed.worker.profile.enabled": False,
}


def launcher(scheduler: str | None = None) -> Launcher:
    """Return a launcher on the cluster of this scheduler, by default on workers on this machine. Raises UsageError."""
    try:
        import distributed
        from distributed.comm import get_address_host_port
        from distributed.security import Security

        if scheduler is None:
            import_module("cryptography")  # by which Dask makes the keys of a cluster of its own
    except ImportError as error:
        raise UsageError(
            f"--launcher dask: dask.distributed cannot be used ({one_line(error)}); "
            "pip install -e '.[dask]', or take another --launcher"
        ) from error
    if scheduler is not None:
        try:
            get_address_host_port(scheduler)
        except ValueError as error:
            raise UsageError(
                f"--scheduler {scheduler}: {error}; give the address that `dask scheduler` shows, such as "
                "tcp://host:8786"
            ) from error
        if scheduler.startswith("tls:") and not Security().get_connection_args("client").get("ssl_context"):
            raise UsageError(
                f"--scheduler {scheduler}: Dask has no certificates here; name them in its configuration, by "
                "distributed.comm.tls"
            )
    return Launcher(
        name="dask",
        launch=partial(launch, scheduler=scheduler),
        transport="process_group",
        facts={"dask": distributed.__version__},
        warm_up=warm_up if scheduler is None else lambda: None,
    )


def launch(job: Job, scheduler: str | None = None) -> list[Any]:
    """Run the job in workers of Dask and return their results in rank order.

    No rank is expendable here. `scheduler`: the address of a scheduler, whose workers can import this project;
    None: workers are started on this machine, and end with this call. Raises RunFailed when a rank fails, UsageError if
    something cannot be sent, or the cluster not used.
    """
    from gradwire.clusters.dask_ranks import Ranks, choose_workers  # loads torch

    n, timeout = job.world_size, job.timeout
    if job.restarts:
        raise UsageError(f"--restarts {job.restarts}: Dask starts no rank again; leave it out")
    sent = dumps(job.for_rank(), "Dask's workers")
    with _own_cluster(n, timeout) if scheduler is None else _connect(scheduler, timeout) as client:
        ranks = Ranks(client, choose_workers(client, n, timeout, scheduler), job)
        ranks.start(sent)
        return ranks.results()


def _connect(scheduler: str, timeout: float) -> "Client":
    """Connect to an existing cluster as a client. Raises UsageError."""
    from distributed import Client

    try:
        return Client(scheduler, timeout=timeout, set_as_default=False)
    except OSError as error:
        raise UsageError(
            f"--scheduler {scheduler}: no Dask scheduler has answered within {timeout:g} s (--timeout); "
            "give the address that `dask scheduler` shows"
        ) from error


@contextmanager
def _own_cluster(n_workers: int, timeout: float) -> Iterator["Client"]:
    """Start `n_workers` workers on this machine, which end with the block, or with this process. Raises RunFailed.

    Only processes with the keys, which are made here and are in no file, can connect to the scheduler and the workers.
    """
    import dask
    from distributed import Client, LocalCluster
    from distributed.security import Security

    warm_up()
    config = _CONFIG | {"distributed.worker.multiprocessing-method": start_context().get_start_method()}
    with ExitStack() as stack:
        try:
            with starting(timeout), hidden_main(), environment(), dask.config.set(config):
                folder = stack.enter_context(TemporaryDirectory(prefix="gradwire-dask-", ignore_cleanup_errors=True))
                cluster = LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    memory_limit=0,
                    local_directory=folder,  # by default in the user's folder, where it stays
                    dashboard_address=None,
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # its HTTP server, on a port that is free
                    silence_logs=logging.CRITICAL,
                    security=Security.temporary(),
                )
                stack.enter_context(cluster)
                client = stack.enter_context(Client(cluster, set_as_default=False))
        except (RuntimeError, TimeoutError) as error:
            raise RunFailed(f"Dask's workers could not be started: {one_line(error)}") from error
        for nanny in cluster.workers.values():
            nanny.close_gracefully()  # it starts no worker again
        try:
            yield client
        finally:
            with interrupts_wait():
                stack.close()
