"""The collectives of a process group on a virtual cluster, whose all-reduce is one of `strategies/all_reduce/`."""

from functools import partial

import torch

from gradwire.backend import collectives
from gradwire.backend.collectives import Plan
from gradwire.core.transports.throttle import Rates
from gradwire.strategies import predictions
from gradwire.virtual_time.transport import Simulated

ANY = Rates(1.0, 1.0)


def plans(all_reduce: str, rates: Rates = ANY) -> dict[str, Plan]:
    """Return the collectives by their names, with this all-reduce, at its best on a network with these rates."""
    return collectives.plans(partial(_sum_up, all_reduce, rates))


def _sum_up(name: str, rates: Rates, vector: torch.Tensor, transport: Simulated) -> None:
    transport.lend(vector)
    found = predictions.candidates(transport.world_size, vector.nbytes, rates).get(name)
    all_reduce = found or predictions.all_reduces()[name]()
    all_reduce.transport = transport
    all_reduce.all_reduce(vector, 0)
