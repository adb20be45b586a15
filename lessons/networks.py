"""How long all-reduces of a student's take on one switch, or on racks, in virtual time. Raises RunFailed."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch

from gradwire.core.transports.base import Transport
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import Racks
from lessons.lab import BANDWIDTH, LATENCY
from lessons.report import Report

AllReduce = Callable[[Transport, torch.Tensor], object]


def measure(
    report: Report, all_reduces: Mapping[str, AllReduce], sizes: Sequence[int], n: int = 8, racks: int = 1
) -> pd.DataFrame | str:
    """Return the virtual milliseconds of each all-reduce among n ranks, by the bytes of their vectors.

    Cards carry 1 Gbit/s and a message takes 50 us besides. Each of several racks has one uplink, as fast as a card.
    """
    if not report.right:
        return "not measured: first have the check say that it is right"
    network = Racks(n, BANDWIDTH, LATENCY, racks, BANDWIDTH)

    def seconds(all_reduce: AllReduce, nbytes: int) -> float:
        def be(transport: Transport) -> float:
            all_reduce(transport, transport.allocate(nbytes // 4))
            return transport.now()

        return max(VirtualTime(network, lambda *_: 0.0).launch(be, n))

    times = {name: [1000 * seconds(all_reduce, nbytes) for nbytes in sizes] for name, all_reduce in all_reduces.items()}
    return pd.DataFrame(times, index=pd.Index(sizes, name="bytes"))
