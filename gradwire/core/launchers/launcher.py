"""What any way of starting ranks takes and offers: one function, and the answers to what that way makes possible."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeAlias

from gradwire.core.transports.throttle import Throttle


@dataclass(frozen=True)
class Job:
    """What ranks are to do: `work(transport, *args)`, on `world_size` of them.

    With `on_report`, the work is called as `work(transport, report, *args)`, and whatever a rank passes to `report`
    reaches `on_report(rank, value)`, in the process that started the rank: its own if it was started before.
    The first of `args` is the same on all ranks, that of the first process; the others, which may be large, need
    only be equal. `timeout` (seconds) bounds every wait of a rank; `roles` name the ranks in messages, by default
    all "worker"; `record` keeps events. The death of an `expendable` rank does not end the run: its result is None, the
    others get PeerLost. Up to `restarts` times such a rank is started again; the ranks that are not expendable get
    PeerReturned, and may admit it. `seed` makes the random state that each rank begins with. On a `link`, a fresh one,
    messages between processes are held back.
    """

    work: Callable[..., Any]
    world_size: int
    args: tuple[Any, ...] = ()
    _: KW_ONLY
    device: str = "cpu"
    timeout: float = 120.0
    roles: Sequence[str] = ()
    record: bool = False
    on_report: Callable[[int, Any], None] | None = None
    expendable: Collection[int] = ()
    restarts: int = 0
    seed: int = 0
    link: Throttle | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", list(self.roles) or ["worker"] * self.world_size)
        if len(self.roles) != self.world_size:
            raise ValueError(f"{len(self.roles)} roles for {self.world_size} ranks")

    def for_rank(self) -> "Job":
        """Return the job as it travels to a rank in another process, whose launcher keeps `on_report`."""
        return replace(self, on_report=self.on_report and _reported_to_the_launcher)


def _reported_to_the_launcher(rank: int, value: Any) -> None:
    raise RuntimeError(f"rank {rank} reports to its launcher")


Launch: TypeAlias = Callable[[Job], list[Any]]
"""Runs a job, and returns the results in rank order where `Launcher.is_first`. Raises RunFailed when a rank fails."""


@dataclass(frozen=True)
class Launcher:
    """How the ranks of a run are started, and what that makes possible."""

    name: str
    launch: Launch
    transport: str  # what carries the messages, as records name it
    world_size: int | None = None  # how many ranks it has started already; None: it starts as many as a Job needs
    is_first: bool = True  # whether this process is the one that gets the results, and so reports and writes
    shared_memory: bool = False  # whether the ranks share memory: vectors, data sets
    restarts: bool = False  # whether expendable ranks may die, and be started again
    processes: bool = True  # whether every rank is a process
    clock: Callable[[], float] | None = None  # the time that progress is shown in, if not the machine's
    facts: Mapping[str, Any] = field(default_factory=dict)  # further facts for the records
    warm_up: Callable[[], None] = lambda: None  # begins, in the background, what `launch` would have to wait for
