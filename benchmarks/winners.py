"""Which all-reduce is the fastest for so many bytes and ranks: in virtual time, and by the closed forms.

python -m benchmarks winners    # the table goes to results/, the map to media/; all points: two minutes on one core

The closed forms, the path of `cost()` and on racks `ON_RACKS`, agree with virtual time where the all-reduce that they
choose takes at most TIE more than the fastest. Of all that do, the first of `all_reduces` is named.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap

from experiments import drawing
from experiments.grid import KEPT, ROOT, Grid
from gradwire.core.transports.base import Transport
from gradwire.options import Options
from gradwire.virtual_time.cluster import NetworkOptions
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import Network
from strategies.all_reduce import predictions
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.all_reduce.predictions import candidates

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
POINTS = [
    {"network": place, "ranks": N, "bytes": n} for place, (*_, ranks) in PLACES.items() for N in ranks for n in SIZES
]

COLOURS = {
    "all_gather": "#f0e442", "naive_all_reduce": "#999999", "recursive_doubling": "#e69f00",
    "halving_doubling": "#56b4e9", "swing": "#cc79a7", "double_tree": "#009e73", "ring_all_reduce": "#0072b2",
    "hierarchical_ring": "#d55e00",
}  # fmt: skip
UNITS = {2**10: "1 KiB", 2**14: "16 KiB", 2**18: "256 KiB", 2**22: "4 MiB", 2**26: "64 MiB"}
_CROSS: Any = {"marker": "X", "s": 34, "facecolors": "white", "edgecolors": "black", "lw": 0.7}


def network_of(place: str, N: int) -> Network:
    """Return the network of N ranks, as simulate.py makes it."""
    bandwidth, latency, rack_bandwidth, _ = PLACES[place]
    cluster = NetworkOptions(racks=N // RACK if rack_bandwidth else 1, rack_bandwidth=rack_bandwidth)
    return cluster.make_network(Options(n_gpus=N, bandwidth=bandwidth, latency=latency))


def all_reduces(network: Network, nbytes: float) -> Iterator[AllReduceSGD]:
    """Yield the all-reduces that are compared."""
    assert network.rates is not None
    yield from candidates(network.world_size, nbytes, network.rates).values()


def simulate(strategy: AllReduceSGD, network: Network, nbytes: int) -> float:
    """Return the virtual seconds until the last rank has the sum of vectors of `nbytes` bytes."""

    def be(transport: Transport) -> float:
        own = dataclasses.replace(strategy)
        own.transport = transport
        own.all_reduce(transport.allocate(nbytes // 4), 1)
        return transport.now()

    return max(VirtualTime(network, lambda *_: 0.0, compute=False).launch(be, network.world_size, device="meta"))


def predict_all_reduce(strategy: AllReduceSGD, network: Network, nbytes: float) -> float:
    """Return the same in closed form, or by the clock where there is none."""
    assert network.rates is not None
    found = predictions.predict_all_reduce(strategy, network.world_size, nbytes, network.rates)
    return simulate(strategy, network, round(nbytes)) if found is None else found


def choose(network: Network, nbytes: float) -> str:
    """Return the name of the fastest by the closed forms, and by the clock where there is none."""
    found = {reduce.name: predict_all_reduce(reduce, network, nbytes) for reduce in all_reduces(network, nbytes)}
    return min(found, key=found.__getitem__)


def borders(place: str, ranks: Iterable[int]) -> Iterator[tuple[int, float]]:
    """Yield the ranks and bytes at which another becomes the fastest by the closed forms."""
    for N in ranks:
        sizes = np.geomspace(SIZES[0], SIZES[-1], 10 * len(SIZES)).tolist()
        chosen = [choose(network_of(place, N), nbytes) for nbytes in sizes]
        yield from ((N, sizes[i]) for i in range(1, len(sizes)) if chosen[i] != chosen[i - 1])


def compare(network: str, ranks: int, bytes: int) -> dict[str, Any]:
    """Return the row of one point."""
    between = network_of(network, ranks)
    found = {reduce.name: simulate(reduce, between, bytes) for reduce in all_reduces(between, bytes)}
    least, chosen = min(found.values()), choose(between, bytes)
    fastest = next(name for name, seconds in found.items() if seconds <= least * (1 + TIE))
    point = {"network": network, "ranks": ranks, "bytes": bytes, "fastest": fastest, "chosen": chosen}
    point |= {"slower_percent": 100 * (found[chosen] / least - 1)}
    return point | {f"{name}_us": 1e6 * seconds for name, seconds in found.items()}


def missed(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return at which points the closed forms choose an all-reduce that is slower."""
    return table["slower_percent"] > 100 * TIE


def summary(table: pd.DataFrame) -> str:
    """Return how often both agree at each network, and each miss with what it costs."""
    lines = []
    for name, of in table.groupby("network", sort=False):
        right = int((~missed(of)).sum())
        lines.append(f"{name}: they agree at {right} of {len(of)} points, {100 * right / len(of):.1f} %")
        for row in of[missed(of)].itertuples():
            slower = f"{row.chosen}, {row.slower_percent:.1f} % slower than {row.fastest}"
            lines.append(f"  {row.ranks} ranks, {row.bytes} bytes: {slower}")
    return "\n".join(lines)


def draw(table: pd.DataFrame, out: Path) -> None:
    """Draw a map for each network, with the borders by the closed forms, and where those choose another."""
    places = table["network"].unique()
    figure, panels = drawing.sheet(4.4, 1, len(places), 10.5, squeeze=False)
    for axes, place in zip(panels[0], places, strict=True):
        of = table[table["network"] == place]
        codes = of.assign(code=of["fastest"].map(list(COLOURS).index))
        won = codes.pivot(index="ranks", columns="bytes", values="code")
        ranks, sizes = list(won.index), won.columns.to_numpy(float)
        edges = np.append(sizes, 2 * sizes[-1]) / np.sqrt(2)
        rows, colours = np.arange(len(ranks) + 1) - 0.5, ListedColormap(list(COLOURS.values()))
        axes.pcolormesh(edges, rows, won.to_numpy(), cmap=colours, vmin=-0.5, vmax=len(COLOURS) - 0.5)
        for N, nbytes in borders(place, ranks):
            axes.vlines(nbytes, ranks.index(N) - 0.5, ranks.index(N) + 0.5, color="black", lw=2)
        wrong = of[missed(of)]
        axes.scatter(wrong["bytes"], wrong["ranks"].map(ranks.index), zorder=3, **_CROSS)
        axes.set(xscale="log", xlabel="bytes of the vector", ylabel="ranks N", xlim=(edges[0], edges[-1]))
        axes.set_xticks(list(UNITS), labels=list(UNITS.values()), fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(ranks)), labels=ranks, fontsize=8)
        right = 100 * (1 - len(wrong) / len(of))
        axes.set_title(f"{place}\nclosed forms right: {right:.1f} % of {len(of)}", fontsize=10)
    for name in table["fastest"].unique():
        axes.bar(0, 0, color=COLOURS[name], label=name)
    axes.plot([], [], color="black", lw=2, label="border by the closed forms")
    axes.scatter([], [], label="they choose another", **_CROSS)
    figure.suptitle("The fastest all-reduce, by bytes and ranks, on three networks", fontsize=12)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    drawing.save(figure, out, 120)


def show(table: pd.DataFrame) -> None:
    """Print the summary, and draw the map."""
    print(summary(table))
    draw(table, PICTURE)


RUNS = Grid(OUT, POINTS, compare, show)
