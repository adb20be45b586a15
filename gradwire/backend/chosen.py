"""The all-reduce of a group: by default one of those here, else one of `strategies/all_reduce/`, or the user's."""

import os
from importlib import import_module
from typing import Any

import torch

from gradwire.backend.collectives import SumUp
from gradwire.backend.transport import GroupTransport
from gradwire.core.records.errors import UsageError, nearest
from gradwire.core.transports.staging_buffer import SLOT_BYTES
from gradwire.strategies import predictions
from gradwire.strategies.collectives import gather_and_add

VARIABLE = "GRADWIRE_ALL_REDUCE"
_SHORT = 2 * SLOT_BYTES  # of all ranks together


def chosen_all_reduce() -> SumUp:
    """Return that which the environment names. Raises UsageError."""
    if (name := os.environ.get(VARIABLE)) is None:
        return _by_length
    known: dict[str, Any] = predictions.all_reduces()
    found = _of_the_user(name) if ":" in name else known.get(name)
    if found is None:
        raise UsageError(
            f"{VARIABLE}={name}: is no all-reduce; {nearest(name, [*known])}there are {', '.join(known)}, and "
            "MODULE:NAME of your own"
        )
    if isinstance(found, type):
        strategy: Any = found()

        def sum_up(vector: torch.Tensor, transport: GroupTransport) -> None:
            transport.lend(vector)
            strategy.transport = transport
            strategy.all_reduce(vector, 0)
    else:

        def sum_up(vector: torch.Tensor, transport: GroupTransport) -> None:
            transport.lend(vector)
            found(vector, transport)

    return sum_up


def _by_length(vector: torch.Tensor, transport: GroupTransport) -> None:
    """Add up short vectors in one round, in which a ring takes 2 (N - 1), and others in two."""
    if vector.nbytes * transport.world_size <= _SHORT:
        gather_and_add(vector, transport)
    else:
        transport.lend(vector)
        _reduce_and_gather(vector, transport)


def _reduce_and_gather(vector: torch.Tensor, transport: GroupTransport) -> None:
    """Replace a vector by the sum over all ranks: each adds up one chunk of everybody's, and sends the sum to all.

    It sends what a ring sends, but waits for others twice. Peers read the chunks in place, or else in a copy.
    """
    N, r = transport.world_size, transport.rank
    others = [(r + i) % N for i in range(1, N)]
    chunks = parts = vector.tensor_split(N)
    buffer = None if transport.is_shared(vector) else transport.borrow(vector.numel(), vector.dtype)
    if buffer is not None:
        parts = buffer[: vector.numel()].tensor_split(N)
    sent = []
    for k in others:
        if buffer is not None:
            parts[k].copy_(chunks[k])
        sent.append(transport.isend(parts[k], k, "share-reduce"))
    total = chunks[r]
    for k in others:
        with transport.recv(k, "share-reduce") as received:
            total = torch.add(total, received.vector, out=parts[r])
    sent += [transport.isend(total, k, "share-only") for k in others]
    if buffer is not None:
        chunks[r].copy_(total)
        transport.give_back(buffer, sent)
    for k in others:
        transport.recv(k, "share-only").copy_to(chunks[k])


def _of_the_user(name: str) -> Any:
    """Return the class or function MODULE:NAME. Raises UsageError."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{VARIABLE}={name}: {error}; give MODULE:NAME, a strategy or a function") from error
    if not callable(found):
        raise UsageError(f"{VARIABLE}={name}: is neither a strategy nor a function of (vector, transport)")
    return found
