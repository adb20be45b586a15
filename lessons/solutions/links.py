"""Lab 6, solved: steps counted on paper, a choice by them, and recursive doubling (Thakur et al., 2005)."""

import torch

from gradwire.core.transports.base import Transport


def seconds_of_server(N: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Return the seconds that the messages of a step of a server and N - 1 workers take, `nbytes` in each."""
    return 2 * latency + 2 * (N - 1) * nbytes * 8 / bandwidth


def seconds_of_ring(N: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Return the seconds that a ring all-reduce of `nbytes` takes on N ranks."""
    return 2 * (N - 1) * (latency + nbytes / N * 8 / bandwidth)


def choose(N: int, nbytes: int, bandwidth: float, latency: float, compute: float) -> str:
    """Return the fastest way to take a step on N ranks: "server", "4 servers" or "ring"."""
    steps = {
        "server": compute / (N - 1) + seconds_of_server(N, nbytes, bandwidth, latency),
        "4 servers": compute / (N - 4) + 2 * latency + 2 * max(N - 4, 4) * nbytes / 4 * 8 / bandwidth,
        "ring": compute / N + seconds_of_ring(N, nbytes, bandwidth, latency),
    }
    return min(steps, key=steps.__getitem__)


def all_reduce(transport: Transport, vector: torch.Tensor) -> None:
    """Replace `vector` [P] on every rank by the mean over all N ranks, in place; N is a power of two."""
    N, r = transport.world_size, transport.rank
    distance = 1
    while distance < N:
        peer = r ^ distance
        transport.isend(vector.clone(), peer, f"distance {distance}")
        with transport.recv(peer, f"distance {distance}") as received:
            vector.add_(received.vector)
        distance *= 2
    vector.div_(N)
