"""Which all-reduce is the fastest for so many bytes and ranks: in virtual time, and by the closed forms.

python -m benchmarks.winners    # two minutes on one core; the table goes to results/, the map to media/

The closed forms, the path of `cost()` and on racks `ON_RACKS`, agree with virtual time where the all-reduce that they
choose takes at most TIE more than the fastest. Of all that do, the first of `all_reduces` is named.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from benchmarks.draw_winners import draw
from experiments.measured import KEPT, ROOT
from records.formulas import evaluate
from strategies import (
    AllGather,
    DoubleTree,
    HalvingDoubling,
    HierarchicalRing,
    NaiveAllReduce,
    RecursiveDoubling,
    RingAllReduce,
    Swing,
)  # fmt: skip
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.common.forms import predict
from training.options import Options
from transports.base import Transport
from virtual_time.cluster import NetworkOptions
from virtual_time.launcher import VirtualTime
from virtual_time.network import Network, Racks

OUT, PICTURE = KEPT / "winners.csv", ROOT / "media" / "winners.png"
TIE = 1e-3
SIZES = tuple(2**i for i in range(8, 27))
SEGMENTS = 64  # of the double tree, at most: without --overhead, more never cost
ON_RACKS = {
    "all_gather": "a + P max((N - 1) b, k (N - k) u)",
    "naive_all_reduce": "2 a + 2 P max((N - 1) b, (N - k) u)",
    "recursive_doubling": "(L + 2 f) a + P ((f + log2(k)) b + (k log2(p / k) + f k / 2) u)",
    "halving_doubling": "2 (L + f) a + 2 P ((f + 1 - (1 + f) / k) b + (f / 2 + 1 - k / p) u)",
    "swing": "max(2 (L + f) a + P ((2 f + 1) b + (S + 1 / 2) u), (5 + 2 f) a + P ((2 f + 1) b + 2 S u))",
    "double_tree": "2 ceil(log2(N)) a + P max(2 b, (2 + (R > 3) (1 + R % 2)) u)",
    "ring_all_reduce": "max(a + 2 (N - 1) P u / N, 2 (N - 1) (a + P b / N) + 2 R P (u - b) / N)",
    "hierarchical_ring": "2 (k - 1) (a + P b / k) + 2 (R - 1) (a + P u / R)",
}
"""Seconds on R > 1 racks of k = 2^i > 2 ranks: a the latency, b and u the seconds a byte of a card and of an uplink.

f: whether N > p, so that ranks fold inside racks. S: the vectors that Swing sends from a rack in the reduce-scatter.
Of a ring and Swing the greater: the messages that wait for each other, of which half of a rack's go at a time from the
third round of Swing on; or all that passes an uplink, without a pause.
"""

FLAT, RACK = (*range(2, 18), 20, 24, 32), 4
PLACES = {
    "100 Gbit/s, 2 µs": ("100gbit", "2us", None, FLAT),
    "1 Gbit/s, 50 µs": ("1gbit", "50us", None, FLAT),
    "10 Gbit/s, 10 µs, racks of 4 with 10 Gbit/s": ("10gbit", "10us", "10gbit", range(8, 33, RACK)),
}
"""Of each network bandwidth, latency, the bandwidth of a rack if there are any, and the numbers of ranks."""


def network(place: str, N: int) -> Network:
    """Return the network of N ranks, as simulate.py makes it."""
    bandwidth, latency, rack_bandwidth, _ = PLACES[place]
    cluster = NetworkOptions(racks=N // RACK if rack_bandwidth else 1, rack_bandwidth=rack_bandwidth)
    return cluster.make_network(Options(n_gpus=N, bandwidth=bandwidth, latency=latency))


def all_reduces(network: Network, nbytes: float) -> Iterator[AllReduceSGD]:
    """Yield the all-reduces that are compared."""
    yield from (AllGather(), NaiveAllReduce(), RecursiveDoubling(), HalvingDoubling(), Swing(), RingAllReduce())
    yield DoubleTree(segments=max(1, min(SEGMENTS, int(nbytes) // 8)))
    if isinstance(network, Racks):
        yield HierarchicalRing(rack=RACK)


def simulate(strategy: AllReduceSGD, network: Network, nbytes: int) -> float:
    """Return the virtual seconds until the last rank has the sum of vectors of so many bytes."""

    def be(transport: Transport) -> float:
        own = dataclasses.replace(strategy)
        own.transport = transport
        own.all_reduce(transport.allocate(nbytes // 4), 1)
        return transport.now()

    return max(VirtualTime(network, lambda *_: 0.0, compute=False).launch(be, network.world_size, device="meta"))


def expect(strategy: AllReduceSGD, network: Network, nbytes: float) -> float:
    """Return the same in closed form."""
    N = network.world_size
    if not isinstance(network, Racks):
        found = predict(strategy, N, round(nbytes), 0.0, network.bandwidth, network.latency)
        assert found is not None
        return found
    k, L = RACK, N.bit_length() - 1
    S = sum(min(k, abs((1 - (-2) ** i) // 3 - 1)) / 2**i for i in range(1, L + 1))  # ranks with a partner away
    values = {"N": N, "k": k, "R": network.racks, "L": L, "p": 1 << L, "f": int(N > 1 << L), "S": S, "P": nbytes}
    seconds = {"a": network.latency, "b": 1 / network.bandwidth, "u": 1 / network.rack_bandwidth}
    return evaluate(ON_RACKS[strategy.name], values | seconds)


def choose(network: Network, nbytes: float) -> str:
    """Return the name of the fastest by the closed forms."""
    found = {one.name: expect(one, network, nbytes) for one in all_reduces(network, nbytes)}
    return min(found, key=found.__getitem__)


def borders(place: str) -> Iterator[tuple[int, float]]:
    """Yield the ranks and bytes at which another becomes the fastest by the closed forms."""
    for N in PLACES[place][3]:
        sizes = np.geomspace(SIZES[0], SIZES[-1], 10 * len(SIZES)).tolist()
        chosen = [choose(network(place, N), nbytes) for nbytes in sizes]
        yield from ((N, sizes[i]) for i in range(1, len(sizes)) if chosen[i] != chosen[i - 1])


def compare(place: str, N: int, nbytes: int) -> dict[str, Any]:
    """Return the row of one point."""
    between = network(place, N)
    found = {one.name: simulate(one, between, nbytes) for one in all_reduces(between, nbytes)}
    least, chosen = min(found.values()), choose(between, nbytes)
    fastest = next(one for one, seconds in found.items() if seconds <= least * (1 + TIE))
    point = {"network": place, "ranks": N, "bytes": nbytes, "fastest": fastest, "chosen": chosen}
    point |= {"slower_percent": 100 * (found[chosen] / least - 1)}
    return point | {f"{one}_us": 1e6 * seconds for one, seconds in found.items()}


def missed(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return at which points the closed forms choose an all-reduce that is slower."""
    return table["slower_percent"] > 100 * TIE


def summary(table: pd.DataFrame) -> str:
    """Return how often both agree at each network, and each miss with what it costs."""
    lines = []
    for name, of in table.groupby("network", sort=False):
        right = int((~missed(of)).sum())
        lines.append(f"{name}: they agree at {right} of {len(of)} points, {100 * right / len(of):.1f} %")
        for one in of[missed(of)].itertuples():
            slower = f"{one.chosen}, {one.slower_percent:.1f} % slower than {one.fastest}"
            lines.append(f"  {one.ranks} ranks, {one.bytes} bytes: {slower}")
    return "\n".join(lines)


if __name__ == "__main__":
    points = [(place, N, nbytes) for place in PLACES for N in PLACES[place][3] for nbytes in SIZES]
    table = pd.DataFrame(compare(*point) for point in tqdm(points, unit="point"))
    table.to_csv(OUT, index=False, float_format="%.6g")
    print(summary(table))
    draw(table, missed(table), {place: list(borders(place)) for place in PLACES}, PICTURE)
