"""Lab 6: clusters of machines, and how long a step takes there: in closed form, and measured in virtual time."""

from functools import lru_cache
from typing import Literal, NamedTuple

from strategies import Strategy
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.common import forms
from strategies.synchronous_server.param_server import ParamServer
from strategies.synchronous_server.sharded_param_server import ShardedParamServer
from training import Options
from transports.card import FAIR
from transports.units import PAYLOAD
from virtual_time.cluster import ClusterOptions
from virtual_time.dry_run import dry_run

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
    """Return the seconds of a step in closed form: see `forms.predict`."""
    predicted = forms.predict(
        CHOICES[choice], cluster.n, cluster.nbytes, share_of(choice, cluster), cluster.bytes_per_second, cluster.latency
    )
    assert predicted is not None, "all of them keep step"
    return predicted


@lru_cache(maxsize=1000)
def measure(choice: str, cluster: Cluster, sharing: Literal["fair", "in_order"] = FAIR) -> float:
    """Return the seconds of a step of the strategy itself, in virtual time. Raises UsageError, RunFailed."""
    options = Options(strategy=CHOICES[choice], n_gpus=cluster.n, bandwidth=f"{cluster.bandwidth / PAYLOAD:.6f}bit",
                      latency=f"{cluster.latency * 1e9:.0f}ns")  # fmt: skip
    compute = ClusterOptions(compute=f"{share_of(choice, cluster):.12f}s", sharing=sharing)
    return dry_run(options, compute, cluster.nbytes / 4, _STEPS, quiet=True).seconds
