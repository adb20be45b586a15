"""Looks at those who wait after gradients only."""

from collections.abc import Callable

import torch

from lessons.solutions.not_waiting import descend, largest_rate  # noqa: F401 - these are right
from transports.base import ANY, Transport


def serve(
    transport: Transport, x: torch.Tensor, update: Callable[[torch.Tensor], None], s: int | None = None
) -> list[int]:
    version, staleness = 0, []
    read = dict.fromkeys(transport.peers, 0)  # the version that each computes on
    steps = dict.fromkeys(transport.peers, 0)  # of those that have not said goodbye
    waiting: set[int] = set()
    while steps:
        message = transport.recv(ANY, ("gradient", "goodbye"))
        k = message.src
        if message.tag == "goodbye":
            del steps[k]
            continue
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
