"""What a rank of a run returns."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from records.events import EventFile
from records.memory import Memory, MemoryUse
from strategies import Replica, Strategy
from strategies.common.replica import bytes_of, parameters_from
from training.evaluation import REPORTER
from training.hashes import Arrays
from training.options import Options
from transports.base import Transport
from transports.messages import Alignment
from workloads.data import Data
from workloads.model_files import to_bytes


@dataclass
class RankResult:
    """What a rank returns: its events, a hash of its module's state; the reporter also the model to be saved."""

    rank: int
    events: EventFile
    parameter_hash: str
    optimizer_bytes: int  # the memory of the optimizer's state on this rank
    saved_model: bytes | None
    arrivals: Sequence[int]  # whose messages came, in their order, where that decides the result
    deaths: list[dict[str, Any]]  # of a server: of its workers, where it continues without them
    alignment: Alignment | None  # where the ranks may run on several machines
    threads: int  # that compute
    hashes: Arrays
    memory: MemoryUse | None  # if it was counted
    applied: str  # of a server that records the staleness of what it applies: "gradient" or "push"


def result_of(
    strategy: Strategy,
    replica: Replica,
    transport: Transport,
    options: Options,
    data: Data,
    hashes: Arrays | None = None,
    memory: Memory | None = None,
) -> RankResult:
    """Return the result of this rank, which gives back what its training has taken."""
    saved = None
    if options.save is not None:
        with transport.recorder.evaluating():
            shown = strategy.model()
        if transport.rank == REPORTER:
            with parameters_from(replica.model, shown):
                saved = to_bytes(replica.model, options.save, options, data)
    replica.close()
    events = transport.recorder.close()
    return RankResult(
        transport.rank,
        events if transport.same_machine else events.carry(),
        hashlib.sha256(bytes_of(replica.tensors()).numpy().tobytes()).hexdigest()[:16],
        strategy.state_bytes,
        saved,
        transport.inbox.arrivals,
        list(transport.recorder.deaths),
        transport.alignment,
        torch.get_num_threads(),
        hashes or {},
        memory.use() if memory else None,
        transport.recorder.applied,
    )
