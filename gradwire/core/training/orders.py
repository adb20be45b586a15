"""What the ranks of a run are given, and what each returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.core.records.events import EventFile
from gradwire.core.strategy.traits import Choice
from gradwire.core.training.options import CoreOptions
from gradwire.core.training.progress import Report
from gradwire.core.training.watchers import Watcher
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import Alignment
from gradwire.core.workloads.data import Data


@dataclass(frozen=True)
class Orders:
    """The arguments that all ranks share: the options, the folder of the first process's events, and the watchers."""

    options: CoreOptions
    events: Path
    watchers: Sequence[Watcher]


@dataclass
class RankResult:
    """The result of a rank: its events, a hash of its module's state, and the results of its watchers."""

    rank: int
    events: EventFile
    parameter_hash: str
    optimizer_bytes: int  # the memory of the optimizer's state on this rank
    arrivals: Sequence[int]  # whose messages came, in their order, where that decides the result
    deaths: list[dict[str, Any]]  # of a server: of its workers, where it continues without them
    alignment: Alignment | None  # where the ranks may run on several machines
    threads: int  # that compute
    choice: Choice | None  # between algorithms, if it was made
    applied: str  # of a server that records the staleness of messages it applies: "gradient" or "push"
    found: dict[str, Any] = field(default_factory=dict)  # by the names of watchers


def carry_out(transport: Transport, report: Callable[[Report], None], orders: Orders, data: Data) -> RankResult:
    """Train as one rank of the run: see `loop.train_rank`, which only a rank loads."""
    from gradwire.core.training.loop import train_rank

    return train_rank(transport, report, orders, data)
