"""Lab 6: clusters of machines, and how long a step takes there: in closed form, and measured in virtual time.

It also explains, in one line, a wrong estimate of a step's seconds, or a wrong choice of a strategy. It judges by the
closed forms, which take no time; a test holds them to be what is measured, in each of these clusters.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isclose
from typing import Literal, NamedTuple

import torch

from gradwire import Options
from gradwire.core.transports.throttle import FAIR
from gradwire.networks.predict import predict as predict_step
from gradwire.networks.units import PAYLOAD
from gradwire.virtual_time.cluster import ClusterOptions
from gradwire.virtual_time.dry_run import dry_run
from strategies import ParamServer, RingAllReduce, ShardedParamServer, Strategy

SERVER, SERVERS, RING = "server", "4 servers", "ring"
CHOICES: dict[str, Strategy] = {SERVER: ParamServer(), SERVERS: ShardedParamServer(servers=4), RING: RingAllReduce()}
_STEPS = 5  # of a run that is measured; the first ones begin with nothing on its way


class Cluster(NamedTuple):
    """N ranks that train one model of `nbytes`, of 4-byte elements."""

    n: int
    nbytes: int
    bandwidth: float  # of a card, in bits a second: those of messages, without headers
    latency: float  # seconds, a whole number of nanoseconds
    compute: float = 0.0  # seconds in which one machine computes the gradient of the whole batch

    def __str__(self) -> str:
        computing = f", computing {seconds(self.compute)}" if self.compute else ""
        size = f"{self.nbytes / 1e6:.3g} MB" if self.nbytes >= 1e6 else f"{self.nbytes / 1e3:.3g} kB"
        return f"N = {self.n}, {size}, {self.bandwidth / 1e9:.3g} Gbit/s, {seconds(self.latency)}{computing}"

    @property
    def bytes_per_second(self) -> float:
        """What a card carries."""
        return self.bandwidth / 8


TO_ESTIMATE = (
    Cluster(4, 64_000, 1e9, 500e-6), Cluster(6, 96_000, 10e9, 100e-6), Cluster(9, 144_000, 1e9, 1e-3),
    Cluster(12, 1_920_000, 25e9, 500e-6), Cluster(16, 25_600, 40e9, 5e-6),
)  # fmt: skip
"""In which latency and bytes both weigh something."""
TO_CHOOSE = (
    Cluster(6, 96_000, 1e9, 500e-6, 2e-3), Cluster(8, 128_000, 100e9, 500e-6, 100e-3),
    Cluster(10, 80_000, 40e9, 10e-6, 5e-3), Cluster(8, 12_800_000, 10e9, 500e-6, 1e-3),
    Cluster(16, 51_200, 40e9, 200e-6, 50e-3), Cluster(6, 48_000_000, 40e9, 200e-6, 20e-3),
    Cluster(8, 25_600_000, 100e9, 200e-6, 1e-3), Cluster(13, 104_000, 1e9, 100e-6, 50e-3),
    Cluster(8, 25_600, 40e9, 20e-6, 2e-3),
)  # fmt: skip
"""Of which each choice is the fastest for three, by 10 % at least, and in which nothing may be left out."""


def seconds(time: float) -> str:
    """Return a time as people read it."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if time >= unit:
            return f"{time / unit:.3g} {name}"
    return f"{time * 1e6:.3g} us"


def share_of(choice: str, cluster: Cluster) -> float:
    """Return how long a worker computes in a step: all workers share the batch, and servers compute nothing."""
    return cluster.compute / CHOICES[choice].count_workers(cluster.n)


def predict(choice: str, cluster: Cluster) -> float:
    """Return the seconds of a step in closed form: see `gradwire.networks.predict`."""
    strategy, compute = CHOICES[choice], share_of(choice, cluster)
    predicted = predict_step(strategy, cluster.n, cluster.nbytes, compute, cluster.bytes_per_second, cluster.latency)
    assert predicted is not None, "all of them keep step"
    return predicted


def measure(choice: str, cluster: Cluster, sharing: Literal["fair", "in_order"] = FAIR) -> float:
    """Return the seconds of a step of the strategy itself, in virtual time. Raises UsageError, RunFailed."""
    options = Options(strategy=CHOICES[choice], n_gpus=cluster.n, bandwidth=f"{cluster.bandwidth / PAYLOAD:.6f}bit",
                      latency=f"{cluster.latency * 1e9:.0f}ns")  # fmt: skip
    compute = ClusterOptions(compute=f"{share_of(choice, cluster):.12f}s", sharing=sharing)
    return dry_run(options, compute, cluster.nbytes / 4, _STEPS, quiet=True).seconds


# Estimates

Term = Callable[[int], float]  # of N
near = partial(isclose, rel_tol=1e-3, abs_tol=1e-12)
_WAITED = "the messages of all workers are on their way at once: only one x and one gradient are waited for"

# Wrong counts of a student's function, as multiples of the latency, or of P / bandwidth, with the hint for each.
LATENCIES: dict[str, Sequence[tuple[Term, str]]] = {
    SERVER: (
        (lambda N: 0, "no latency is counted; every message takes one"),
        (lambda N: 1, "one latency is counted; a step is a way there, and then a way back"),
        (lambda N: 2 * (N - 1), f"2 (N - 1) latencies are counted, one for each message; {_WAITED}"),
    ),
    RING: (
        (lambda N: 0, "no latency is counted; every message takes one"),
        (lambda N: 1, "the latency is counted once; a rank sends a chunk when it has received the one before"),
        (lambda N: N - 1, "N - 1 latencies are counted, and a ring goes round twice: share-reduce and share-only"),
        (lambda N: 2 * N, "2 N latencies are counted: in each round the chunk is there after N - 1 messages, for its "
                          "first rank has it already"),
        (lambda N: 2 * N * (N - 1), "N messages are counted one after the other in each step; on a ring all cards "
                                    "send at once"),
    ),
}  # fmt: skip
VECTORS: dict[str, Sequence[tuple[Term, str]]] = {
    SERVER: (
        (lambda N: N, "N vectors are counted, as if the server sent one x after the other; here all x share its card, "
                      "so all end together, and only then do the gradients come"),
        (lambda N: N - 1, "N - 1 vectors are counted; so many go out, and as many come in when all x have gone out"),
        (lambda N: 2, "one x and one gradient are counted; those of all workers share one card, the server's"),
    ),
    RING: (
        (lambda N: 2 * (N - 1), "whole vectors are counted, 2 (N - 1) of them; a message of a ring is a chunk"),
        (lambda N: N - 1, "whole vectors are counted, N - 1 of them; a message of a ring is a chunk"),
        (lambda N: (N - 1) / N, "N - 1 chunks are counted, and a ring goes round twice: share-reduce and share-only"),
        (lambda N: 4 * (N - 1) / N, "bytes that come in are added to those that go out; a card is full duplex, and "
                                    "does both at once"),
    ),
}  # fmt: skip
RIGHT: dict[str, tuple[Term, Term]] = {
    SERVER: (lambda N: 2, lambda N: 2 * (N - 1)),
    RING: (lambda N: 2 * (N - 1), lambda N: 2 * (N - 1) / N),
}


def _with_quarters(count: int, choice: str, cluster: Cluster) -> float:
    """Return the seconds of a step, that of four servers with `count` quarters of a vector there, and as many back."""
    if choice != SERVERS:
        return predict(choice, cluster)
    quarters = 2 * count * cluster.nbytes / 4 / cluster.bytes_per_second
    return share_of(choice, cluster) + 2 * cluster.latency + quarters


# What a student may have left out: the seconds of a step, by choice and cluster, in another world.
WORLDS: dict[str, Callable[[str, Cluster], float]] = {
    "computing took no time, or equally long in all three: servers compute nothing, and fewer workers take longer for "
    "the batch": lambda choice, c: predict(choice, c._replace(compute=0.0)),
    "the bandwidth were bytes a second: it is bits":
        lambda choice, c: predict(choice, c._replace(bandwidth=8 * c.bandwidth)),
    "all but one rank were workers of four servers: N - 4 are, and as many quarters go out of a server's card":
        lambda choice, c: _with_quarters(c.n - 1, choice, c),
    "only the card of a server of four were shared: a worker's own card takes in four quarters, and there are fewer "
    "than four workers for N < 8":
        lambda choice, c: _with_quarters(c.n - 4, choice, c),
}  # fmt: skip


def vary(cluster: Cluster) -> list[Cluster]:
    """Return a cluster, and two that tell what its estimate is made of: with twice the latency, or twice the bytes."""
    return [cluster, cluster._replace(latency=2 * cluster.latency), cluster._replace(nbytes=2 * cluster.nbytes)]


def explain_estimates(choice: str, clusters: Sequence[Cluster], estimates: torch.Tensor) -> Iterator[str]:
    """Yield the faults in the estimates of `vary` of each cluster [clusters, 3]."""
    of_all = [float(three[0]) / predict(choice, cluster) for three, cluster in zip(estimates, clusters, strict=True)]
    i = next((i for i, found in enumerate(of_all) if not near(found, 1)), None)
    if i is None:
        return
    measured = predict(choice, clusters[i])
    begin = f"{clusters[i]}: yours is {seconds(of_all[i] * measured)}, and {seconds(measured)} were measured;"
    if all(near(found, 1000) for found in of_all):
        yield f"{begin} yours is 1,000 times as long in every cluster: return seconds"
    (latencies, vectors), ns = _made_of(clusters, estimates), [cluster.n for cluster in clusters]
    of_latency, of_bytes = RIGHT[choice]
    for hints in (_hints(latencies, ns, of_latency, LATENCIES[choice]), _hints(vectors, ns, of_bytes, VECTORS[choice])):
        yield from (f"{begin} {hint}" for hint in hints)
    yield (f"{begin} with twice the latency yours grows by {latencies[i]:.3g} latencies, with twice the bytes by "
           f"{vectors[i]:.3g} times P / bandwidth")  # fmt: skip


def _made_of(clusters: Sequence[Cluster], estimates: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return how many latencies, and how many times P / bandwidth, there are in the estimates of each cluster."""
    rows = [*zip(estimates.tolist(), clusters, strict=True)]
    latencies = [(more - once) / cluster.latency for (once, more, _), cluster in rows]
    return latencies, [(more - once) * cluster.bytes_per_second / cluster.nbytes for (once, _, more), cluster in rows]


def are_counted(choice: str, clusters: Sequence[Cluster], estimates: torch.Tensor) -> tuple[bool, bool]:
    """Return whether the estimates count the latencies rightly, and the bytes."""
    ns = [cluster.n for cluster in clusters]
    latencies, vectors = (
        all(near(value, right(n)) for value, n in zip(found, ns, strict=True))
        for found, right in zip(_made_of(clusters, estimates), RIGHT[choice], strict=True)
    )
    return latencies, vectors


def _hints(found: Sequence[float], ns: Sequence[int], right: Term, known: Sequence[tuple[Term, str]]) -> Iterator[str]:
    """Yield hints on the factors that were found, if they are wrong and match known mistakes."""

    def are(term: Term, factor: float = 1.0) -> bool:
        return all(near(value, factor * term(n)) for value, n in zip(found, ns, strict=True))

    if are(right):
        return
    if are(right, 1 / 8) or are(right, 8):
        yield "bits are taken for bytes: a byte has 8 bits; P is in bytes, the bandwidth in bits a second"
    yield from (text for term, text in known if are(term) or are(term, 1 / 8))


# Choices


def fastest(cluster: Cluster, seconds_of: Callable[[str, Cluster], float] = predict) -> str:
    """Return the choice whose step is the shortest, here or in another world."""
    return min(CHOICES, key=lambda choice: seconds_of(choice, cluster))


def ratios(clusters: Sequence[Cluster], chosen: Sequence[str]) -> list[float]:
    """Return by cluster how many times as long a step takes as with the fastest."""
    pairs = zip(clusters, chosen, strict=True)
    return [predict(choice, cluster) / predict(fastest(cluster), cluster) for cluster, choice in pairs]


def explain_choices(clusters: Sequence[Cluster], chosen: Sequence[str]) -> Iterator[str]:
    """Yield the faults in choices of which some are slower than the fastest."""
    found = ratios(clusters, chosen)
    worst = max(range(len(found)), key=found.__getitem__)
    cluster, choice = clusters[worst], chosen[worst]
    best = fastest(cluster)
    text = f"{cluster}: you chose {choice!r}, {_parts(choice, cluster)} a step; {best!r} takes {_parts(best, cluster)}"
    for what, world in WORLDS.items():
        if list(chosen) == [fastest(cluster, world) for cluster in clusters]:
            yield f"{text}; you choose as if {what}"
    if len(set(chosen)) == 1:
        text += f"; you chose {choice!r} for all {len(chosen)} clusters, and each of the three is the best somewhere"
        of_ring = "; without latency a ring always is, but its 2 (N - 1) messages follow each other, and each takes one"
        text += of_ring * (choice == RING)
    yield text


def _parts(choice: str, cluster: Cluster) -> str:
    """Return the seconds of a step, and what they are made of."""
    whole, computing = predict(choice, cluster), share_of(choice, cluster)
    return f"{seconds(whole)} (computing {seconds(computing)}, messages {seconds(whole - computing)})"
