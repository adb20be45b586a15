"""In virtual time a message costs some tens of microseconds of real time, hardly more with more ranks.

python benchmarks/virtual_time.py

One ring all-reduce of 10,000 float32 elements among so many ranks, all of them coroutines of this process. `seconds` is
what it takes, from the start of the ranks to their end; `us_a_message` is that by the number of messages, 2 N (N - 1).
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Settings, figures, in_turns, main
from strategies.collectives import ring_all_reduce
from transports.base import Transport
from transports.timing import now
from virtual_time.launcher import VirtualTime
from virtual_time.network import OneSwitch

_NUMEL = 10_000


@dataclass(frozen=True)
class VirtualTimeSettings(Settings):
    """Options of the benchmark of virtual time."""

    repeats: int = 5
    ranks: tuple[int, ...] = (16, 64, 256)
    """Numbers of ranks."""

    least = {"ranks": 2}


def ring(transport: Transport) -> float:
    """Run one rank of a ring; return an element of the sum."""
    vector = transport.allocate(_NUMEL).fill_(transport.rank)
    ring_all_reduce(vector, transport)
    return vector[0].item()


def seconds_of(N: int) -> float:
    """Return the seconds of one ring all-reduce among N ranks."""
    time = VirtualTime(OneSwitch(N, bandwidth=125e6, latency=50e-6), lambda rank, phase, part: 0.0)
    t0 = now()
    sums = time.launch(ring, N, record=True)
    seconds = now() - t0
    if set(sums) != {N * (N - 1) / 2}:
        raise RuntimeError(f"a wrong sum of {N} ranks")
    return seconds


def measure(settings: VirtualTimeSettings) -> Iterator[Row]:
    """Yield one row per number of ranks."""
    for N in settings.ranks:
        seconds = in_turns({"ring": partial(seconds_of, N)}, settings.repeats)["ring"]
        messages = 2 * N * (N - 1)
        yield {"ranks": N, "messages": messages, **figures(us_a_message=seconds / messages * 1e6, seconds=seconds)}


if __name__ == "__main__":
    sys.exit(main(__doc__, VirtualTimeSettings, measure))
