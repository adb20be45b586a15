"""The time of an all-reduce in closed form, at one switch and on racks; and which all-reduces are worth comparing."""

from math import log2, sqrt
from typing import TYPE_CHECKING, Any, cast

from gradwire.core.records.formulas import evaluate
from gradwire.core.strategy.cost_model import evaluate_cost
from gradwire.core.transports.throttle import Rates
from gradwire.networks.predict import predict

if TYPE_CHECKING:
    from strategies.all_reduce.all_reduce_sgd import AllReduceSGD  # which imports this package

SEGMENTS = 64  # of the double tree, at most: without an overhead, more never cost
ON_RACKS = {
    "all_gather": "a + P max((N - 1) b, k (N - k) u)",
    "naive_all_reduce": "2 a + 2 P max((N - 1) b, (N - k) u)",
    "recursive_doubling": "L a + P (log2(k) b + k log2(N / k) u)",
    "halving_doubling": "2 L a + 2 P ((1 - 1 / k) b + (1 - k / N) u)",
    "swing": "max(2 L a + P (b + (S + 1 / 2) u), 5 a + P (b + 2 S u))",
    "ring_all_reduce": "max(a + 2 (N - 1) P u / N, 2 (N - 1) (a + P b / N) + 2 R P (u - b) / N)",
    "double_tree": "2 ceil(log2(N)) a + P max(2 b, (2 + (R > 3) (1 + R % 2)) u)",
    "hierarchical_ring": "2 (k - 1) (a + P b / k) + 2 (R - 1) (a + P u / R)",
}
"""Seconds on R > 1 racks of k = 2^i > 2 ranks: a the latency, b and u the seconds a byte of a card and of an uplink.

S: the vectors that Swing sends from a rack in the reduce-scatter.
A ring and Swing take the longer of two times: that of the messages that wait for each other (from the third round of
Swing on, half of a rack's at a time); and that of all messages through an uplink, without a pause.
"""


def all_reduces() -> dict[str, type["AllReduceSGD"]]:
    """Return the all-reduces that are compared, the simple ones first, by their names."""
    from gradwire.strategies import STRATEGIES  # which imports this module; a script may have its own `strategies`

    return {name.removesuffix("_all_reduce"): cast(Any, STRATEGIES[name]) for name in ON_RACKS}


def candidates(N: int, nbytes: float, rates: Rates) -> dict[str, "AllReduceSGD"]:
    """Return them with their best options; hierarchical rings only where racks are alike."""
    segments = min(SEGMENTS, nbytes // 8)
    if rates.overhead:
        segments = min(segments, sqrt(log2(max(N, 2)) * nbytes / 2 / rates.bandwidth / rates.overhead))
    options = {"double_tree": {"segments": max(1, int(segments))}, "hierarchical_ring": {"rack": N // rates.racks}}
    kinds = all_reduces()
    if rates.racks == 1 or N % rates.racks:
        del kinds["hierarchical_ring"]
    return {name: kind(**options.get(name, {})) for name, kind in kinds.items()}


def predict_all_reduce(strategy: "AllReduceSGD", N: int, nbytes: float, rates: Rates) -> float | None:
    """Return the seconds until the last rank has the sum of vectors of `nbytes` bytes; None: no form is known."""
    a, bandwidth, overhead = rates.latency, rates.bandwidth, rates.overhead
    if rates.racks == 1:
        return predict(strategy, N, round(nbytes), 0.0, bandwidth, a, sharing=rates.sharing, overhead=overhead)
    k, rest = divmod(N, rates.racks)
    path = strategy.cost().path
    folds = path is not None and path.powers_of_two and N & (N - 1) != 0
    if rest or k < 4 or k & (k - 1) or overhead or folds:
        return None
    L = N.bit_length() - 1
    S = sum(min(k, abs((1 - (-2) ** i) // 3 - 1)) / 2**i for i in range(1, L + 1))  # ranks with a partner away
    values = {"N": N, "k": k, "R": rates.racks, "L": L, "S": S, "P": nbytes}
    return evaluate(ON_RACKS[strategy.name], values | {"a": a, "b": 1 / bandwidth, "u": 1 / rates.rack_bandwidth})


def predict_on_cores(strategy: "AllReduceSGD", N: int, nbytes: float, rates: Rates, cores: int) -> float:
    """Return roughly the seconds at one switch, or those that `cores` need to send and receive all messages."""
    messages, sent = evaluate_cost(strategy, strategy.cost().worker, N, round(nbytes))
    work = N * (2 * messages * rates.overhead + sent / rates.bandwidth) / cores
    return max(work, predict_all_reduce(strategy, N, nbytes, rates) or 0.0)
