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
from gradwire.core.transports.base import Transport
from gradwire.options import Options
from gradwire.virtual_time.cluster import NetworkOptions
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import Network
from strategies.all_reduce import expected
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.all_reduce.expected import candidates

OUT, PICTURE = KEPT / "winners.csv", ROOT / "media" / "winners.png"
TIE = 1e-3
SIZES = tuple(2**i for i in range(8, 27))

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
    assert network.rates is not None
    yield from candidates(network.world_size, nbytes, network.rates).values()


def simulate(strategy: AllReduceSGD, network: Network, nbytes: int) -> float:
    """Return the virtual seconds until the last rank has the sum of vectors of so many bytes."""

    def be(transport: Transport) -> float:
        own = dataclasses.replace(strategy)
        own.transport = transport
        own.all_reduce(transport.allocate(nbytes // 4), 1)
        return transport.now()

    return max(VirtualTime(network, lambda *_: 0.0, compute=False).launch(be, network.world_size, device="meta"))


def expect(strategy: AllReduceSGD, network: Network, nbytes: float) -> float:
    """Return the same in closed form, or by the clock where there is none."""
    assert network.rates is not None
    found = expected.expect(strategy, network.world_size, nbytes, network.rates)
    return simulate(strategy, network, round(nbytes)) if found is None else found


def choose(network: Network, nbytes: float) -> str:
    """Return the name of the fastest by the closed forms, and by the clock where there is none."""
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
