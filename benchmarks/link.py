"""A message that is held back takes bytes / bandwidth + latency, within 5 percent from 10 ms up, where the machine
itself is faster than the link.

python benchmarks/link.py

Real processes, with --bandwidth and --latency as in train.py. `from_to`: how many ranks send and receive at once, of
which several share one card; `expected_ms` is when the last byte of the last message is there. ratio is ms /
expected_ms, repeat by repeat.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Settings, figure, main, ratio
from ring_all_reduce_builtin import join
from training import launch
from transports.base import Transport
from transports.link import Link
from transports.process_group import ProcessGroup
from transports.timing import now

LATENCY = 1e-4  # seconds
CASES = ((125e6, 1_250_000), (125e6, 12_500_000), (1.25e9, 12_500_000), (1.25e9, 125_000_000))
"""Bandwidths (bytes a second), and how many bytes are sent."""


@dataclass(frozen=True)
class LinkSettings(Settings):
    """Options of the benchmark of the link."""

    smallest: bool = False
    """Only the message of the fewest bytes."""


def send(transport: Transport, of_torch: bool, nbytes: int, senders: int, repeats: int) -> list[float]:
    """Run one rank; receivers return the seconds until they have all messages of a repeat, of ranks below `senders`."""
    if of_torch:
        join(transport, "gloo")
        transport = ProcessGroup(transport.device, transport.timeout, link=transport.link)
        transport.align_clocks()
    receivers = range(senders, transport.world_size)
    vector, seconds = transport.allocate(nbytes, torch.uint8), []
    for _ in range(repeats + 1):
        transport.barrier()
        if transport.rank in receivers:
            times = []
            for src in range(senders):
                with transport.recv(src, "x") as message:
                    times.append((message.n, now()))
            seconds.append(max(end for _, end in times) - min(start for start, _ in times) / 1e9)
        else:
            start = int(now() * 1e9)
            for work in [transport.isend(vector, dst, "x", n=start) for dst in receivers]:
                work.wait()
    if of_torch:
        transport.close()
    return seconds[1:]


def measure(settings: LinkSettings) -> Iterator[Row]:
    """Yield one row per transport, bandwidth, size and number of ranks."""
    cases = CASES[:1] if settings.smallest else CASES
    for of_torch, (bandwidth, nbytes), (n, m) in product((False, True), cases, ((1, 1), (1, 2), (2, 1))):
        ranks = launch(send, n + m, of_torch, nbytes, n, settings.repeats, link=Link(bandwidth, LATENCY))
        seconds = np.max([times for times in ranks if times], axis=0)
        expected = max(n, m) * nbytes / bandwidth + LATENCY
        yield {
            "transport": "process_group" if of_torch else "shared_memory",
            "gbit": bandwidth * 8e-9,
            "mb": nbytes / 1e6,
            "from_to": f"{n} to {m}",
            "expected_ms": expected * 1e3,
            **figure("ms", seconds * 1e3),
            **ratio(seconds, np.full(len(seconds), expected)),
        }


if __name__ == "__main__":
    sys.exit(main(__doc__, LinkSettings, measure))
