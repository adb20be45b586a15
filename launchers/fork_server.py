"""What new processes are made from: a fork server that has loaded already what they import."""

import multiprocessing
import signal
import sys
import threading
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext

from launchers.sockets import claim_folder

_PRELOADED = ["torch"]


def preload(module: str) -> None:
    """Have the fork server import `module` too when it starts: what ranks import, they find loaded."""
    if module not in _PRELOADED:
        _PRELOADED.append(module)


def start_context() -> ForkServerContext | SpawnContext:
    """Return how processes are started: by a fork server that has torch loaded already, where there is one."""
    # Elsewhere (macOS) a process that has loaded torch cannot safely be forked.
    if sys.platform != "linux" or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def warm_up() -> None:
    """Start the fork server in the background: it loads torch while the caller does other things."""
    claim_folder()
    if start_context().get_start_method() != "forkserver":
        return
    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        forkserver.ensure_running()
        return
    # Ctrl-C reaches the whole group, as does SIGHUP of a terminal that is closed, but it is the launcher that ends the
    # ranks, with one message: they inherit that both are blocked. Neither is lost meanwhile, as it would be if it were
    # ignored: it arrives after the block.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # first, because it unblocks SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
