"""How long each all-reduce takes for a vector on these ranks, for the strategy `all_reduce`.

Where the network is known, in virtual time or by --bandwidth and --latency, the closed forms of `predictions.py`
decide. All-reduces that have none there (for N no power of two, if cards share fairly) are timed, with the best of the
others.
Where the network is not known, all are timed for some milliseconds, on processes the three likeliest; where ranks share
cores, these are those with the fewest messages in all, not with the shortest chain of them. Of each counts the slowest
rank, in the median of some blocks of calls. Rank 0 decides, and tells all.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from gradwire.core.records.machine import usable_cores
from gradwire.core.transports.base import Transport
from gradwire.core.transports.throttle import IN_ORDER, Rates
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.all_reduce.predictions import predict_all_reduce, predict_on_cores

PROCESSES = Rates(bandwidth=4e9, latency=2e-5, overhead=2e-5, sharing=IN_ORDER)  # roughly, to find whom to time
_LIKELIEST, _BLOCKS, _BLOCK_S, _MOST_CALLS = 3, 5, 1e-3, 20


def compare(
    transport: Transport, vector: torch.Tensor, known: dict[str, AllReduceSGD], nbytes: float
) -> tuple[dict[str, float], str]:
    """Return the seconds of those among which the fastest is, and in words how they were found."""
    N, rates = transport.world_size, transport.rates
    forms = {name: predict_all_reduce(kind, N, nbytes, rates) if rates else None for name, kind in known.items()}
    seconds = {name: of for name, of in forms.items() if of is not None}
    if len(seconds) == len(known):
        return seconds, "by the closed forms"
    best = min(seconds, key=seconds.__getitem__, default=None)
    timed = {name: kind for name, kind in known.items() if name not in seconds or name == best}
    why = f"as timed, {best} with those that have no closed form" if best else "as timed"
    return _time(transport, vector, timed, nbytes), why


def _time(
    transport: Transport, vector: torch.Tensor, known: dict[str, AllReduceSGD], nbytes: float
) -> dict[str, float]:
    """Return the seconds of the likeliest to be the fastest; where time is virtual, of all, each called once."""
    N, vector = transport.world_size, vector[: max(1, round(nbytes) // vector.itemsize)]
    with transport.recorder.paused():
        calls, blocks = 1, 1
        if transport.recorder.time_passes is None:
            cores = _agree(transport, usable_cores(), lambda of_all: len(set().union(*of_all)))
            alike = {predict_on_cores(known[name], N, nbytes, PROCESSES, cores): name for name in reversed(known)}
            known = {alike[of]: known[alike[of]] for of in sorted(alike)[:_LIKELIEST]}  # of those alike the first
            calls, blocks = max(1, min(_MOST_CALLS, int(_BLOCK_S / min(alike)))), _BLOCKS
        spans: dict[str, list[float]] = {name: [] for name in known}
        for name in [*known] * (blocks + 1):  # the first block warms up
            known[name].transport = transport
            transport.barrier()
            t0 = transport.now()
            for _ in range(calls):
                known[name].all_reduce(vector, 0)
            transport.barrier()
            spans[name].append((transport.now() - t0) / calls)
        return _agree(transport, spans, lambda of_all: {name: median(of[1:]) for name, of in of_all[0].items()})


def _agree(transport: Transport, own: Any, decide: Callable[[list[Any]], Any]) -> Any:
    """Return on all ranks what rank 0 makes of what each has."""
    if transport.rank:
        transport.isend(own, 0, "to choose")
        return transport.recv(0, "chosen").object
    found = decide([own, *(transport.recv(peer, "to choose").object for peer in transport.peers)])
    for peer in transport.peers:
        transport.isend(found, peer, "chosen")
    return found
