"""Needs one round, and N - 1 messages."""

import torch

from strategies.collectives import gather_and_add
from transports.base import Transport


def seconds_of_server(N: int, nbytes: int, bandwidth: float, latency: float) -> float:
    return 2 * latency + N * nbytes * 8 / bandwidth


def seconds_of_ring(N: int, nbytes: int, bandwidth: float, latency: float) -> float:
    return 2 * (N - 1) * (latency + nbytes / N * 8 / bandwidth)


def choose(N: int, nbytes: int, bandwidth: float, latency: float, compute: float) -> str:
    steps = {
        "server": compute / (N - 1) + seconds_of_server(N, nbytes, bandwidth, latency),
        "4 servers": compute / (N - 4) + 2 * latency + N * nbytes / 4 * 8 / bandwidth,
        "ring": compute / N + seconds_of_ring(N, nbytes, bandwidth, latency),
    }
    return min(steps, key=steps.__getitem__)


def all_reduce(transport: Transport, vector: torch.Tensor) -> None:
    gather_and_add(vector, transport)
    vector.div_(transport.world_size)
