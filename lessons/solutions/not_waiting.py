"""Lab 4, solved: the loop of `async_param_server.py` without deaths, and the largest rate by halving."""

from collections.abc import Callable

import torch

from gradwire.core.transports.base import ANY, Transport


def serve(
    transport: Transport, x: torch.Tensor, update: Callable[[torch.Tensor], None], s: int | None = None
) -> list[int]:
    """Rank 0: apply each gradient when it comes, until all workers have said goodbye; return the staleness of each."""
    version, staleness = 0, []
    read = dict.fromkeys(transport.peers, 0)  # the version that each computes on
    steps = dict.fromkeys(transport.peers, 0)  # of those that have not said goodbye
    waiting: set[int] = set()
    while steps:
        message = transport.recv(ANY, ("gradient", "goodbye"))
        k = message.src
        if message.tag == "goodbye":
            del steps[k]
        else:
            with message:
                update(message.vector)
            staleness.append(version - read[k])
            version += 1
            steps[k] += 1
            waiting.add(k)
        for k in sorted(waiting):
            if s is None or steps[k] - min(steps.values()) <= s:
                waiting.remove(k)
                read[k] = version
                transport.isend(x.clone(), k, "parameters")  # a copy: x may change while it is on its way
    return staleness


def descend(rate: float, curvature: float, tau: int, steps: int) -> list[float]:
    """Return x_0 = 1, x_1, ..., x_steps of descent on curvature x^2 / 2, whose gradients are tau steps late."""
    x = [1.0]
    for t in range(steps):
        x.append(x[t] - rate * curvature * x[max(t - tau, 0)])
    return x


def largest_rate(curvature: float, tau: int) -> float:
    """Return, to 1 %, the largest rate with which `descend` goes to 0: 2 sin(pi / (2 (2 tau + 1))) / curvature."""
    small, large = 0.0, 3 / curvature
    steps = 500 * (tau + 1)
    while large - small > 0.002 * large:
        rate = (small + large) / 2
        x = [abs(value) for value in descend(rate, curvature, tau, steps)]
        if max(x[steps // 2 :]) < max(x[: steps // 2]):  # both halves are many swings long
            small = rate
        else:
            large = rate
    return small
