"""Lab 6, to be filled in: links. The text of the lab is in 6_links.ipynb.

python -m lessons.check links lessons/links.py

python train.py --strategy lessons.links:Mine --n_gpus 4      # when it is right: trains by its all_reduce
"""

from dataclasses import dataclass

import torch

from gradwire.core.transports.base import Transport
from lessons import ring
from strategies import Cost, Traffic


def seconds_of_server(N: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Return the seconds that the messages of a step of a server and N - 1 workers take, `nbytes` in each.

    `bandwidth` of every card in bits a second, for each direction; `latency` in seconds. Steps follow each other, and
    computing takes no time.
    """
    raise NotImplementedError(
        "seconds_of_server: draw a step of one server and two workers. What passes each direction of the server's "
        "card, and when? Which latencies does nobody wait for?"
    )


def seconds_of_ring(N: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Return the seconds that a ring all-reduce of `nbytes` takes on N ranks.

    `bandwidth` of every card in bits a second, for each direction; `latency` in seconds.
    """
    raise NotImplementedError(
        "seconds_of_ring: how many messages of a rank come one after the other, and how long is one? What do the other "
        "cards do meanwhile?"
    )


def choose(N: int, nbytes: int, bandwidth: float, latency: float, compute: float) -> str:
    """Return the fastest way to take a step on N ranks: "server", "4 servers" or "ring".

    `compute` is the seconds in which one machine computes the gradient of the whole batch. The workers share it evenly;
    with four servers N - 4 ranks work, and each server has a quarter of x. N is 6 or more.
    """
    raise NotImplementedError(
        "choose: the seconds of a step are computing and messages; which ranks compute in each of the three, and what "
        "passes the card of one server of four, and that of a worker?"
    )


def all_reduce(transport: Transport, vector: torch.Tensor) -> None:
    """Replace `vector` [P] on every rank by the mean over all N ranks, in place; N is a power of two.

    All ranks end with the same bits, as the replicas of a model must.
    """
    raise NotImplementedError(
        "all_reduce: in log2 N rounds. After a round two ranks that have exchanged hold the same sum; with whom is "
        "each to exchange in the next, so that nothing is added twice?"
    )


@dataclass(kw_only=True)
class Mine(ring.Mine):
    """The gradients of all ranks are averaged by the all-reduce above, and all take the same step."""

    all_reduce = staticmethod(all_reduce)

    def cost(self, kind: str | None = None) -> Cost:
        """A whole vector in each round."""
        return Cost(worker=Traffic("log2(N)", "log2(N) P"))
