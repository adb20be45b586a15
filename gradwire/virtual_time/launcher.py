"""Run the ranks in virtual time: coroutines of this process on a network of numbers, see `world.py`."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenlet import greenlet

from gradwire.core.launchers.devices import as_before, set_up
from gradwire.core.launchers.explanation import explain
from gradwire.core.launchers.failures import Failure, do_work, failure_of, with_advice
from gradwire.core.launchers.launcher import Job, Launcher
from gradwire.core.launchers.local import allow_open_files
from gradwire.core.transports.messages import PeerLost
from gradwire.virtual_time.handling import Handling
from gradwire.virtual_time.network import Network
from gradwire.virtual_time.ranks import Deadlock, Killed, Ranks
from gradwire.virtual_time.sharing import Cores, Fair
from gradwire.virtual_time.transport import Simulated
from gradwire.virtual_time.world import World

_OTHER_FILES = 128


@dataclass(frozen=True)
class Death:
    """When a rank dies, and when it is started again (None: never), in virtual seconds."""

    rank: int
    time: float
    returns: float | None = None


@dataclass
class VirtualTime:
    """A cluster in virtual time: `launch` runs ranks on it.

    `seconds(rank, phase, part)` is the time that a rank needs for a phase of a step, `part` of it being done.
    """

    network: Network
    seconds: Callable[[int, str, float], float]
    deaths: Sequence[Death] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    compute: bool = True  # whether the ranks draw random numbers and compute gradients; else they are switched faster
    cores: int | None = None  # of one machine, on which all ranks run; None: each has a machine of its own
    copying: float = 0.0  # seconds a byte that a message takes of these: see `Cores`
    handling: Handling | None = None  # of messages, by the core of a rank; None: it takes no time
    member: type[Simulated] = Simulated  # the class of a rank
    world: World | None = field(default=None, init=False)
    ranks: Ranks | None = field(default=None, init=False)

    def now(self) -> float:
        """Return the virtual seconds since the start."""
        return self.world.time if self.world else 0.0

    def launcher(self) -> Launcher:
        """Return this way of running ranks."""
        return Launcher(
            name="virtual time",
            launch=self.run,
            transport="simulated",
            world_size=self.network.world_size,
            restarts=True,
            processes=False,
            clock=self.now,
            facts=self.facts,
        )

    def launch(self, work: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> list[Any]:
        """Run `work(transport, *args)` on `world_size` ranks: see `launchers.launch`."""
        return self.run(Job(work, world_size, args, **options))

    def run(self, job: Job) -> list[Any]:
        """Run the job; return the results in rank order. No wait has a limit, whatever its `timeout`.

        Raises RunFailed, Deadlock.
        """
        if job.link:
            raise ValueError("ranks in virtual time have a network, and no link beside it")
        world_size = job.world_size
        allow_open_files(world_size + _OTHER_FILES, f"--n_gpus {world_size}")  # each may write its events
        self.world = world = World(self.network, self.compute)
        self.ranks = ranks = Ranks(world, world_size)
        ranks.seconds, ranks.handling = self.seconds, self.handling
        if self.copying and not (self.cores and isinstance(world.sharing, Fair)):
            raise ValueError("copying: a part of cores, where messages share cards fairly")
        if self.cores:
            fair = world.sharing if isinstance(world.sharing, Fair) else Fair(world)
            ranks.cores = Cores(fair, self.cores, self.copying)
        ranks.hosts = set(range(world_size)) - set(job.expendable)
        results: dict[int, Any] = dict.fromkeys(range(world_size))
        failures: dict[int, Failure] = {}
        coroutines: list[greenlet] = []
        deaths = {death.rank: death for death in self.deaths}
        present = set(range(world_size))

        def run_rank(rank: int, life: int) -> None:
            setup = set_up(job, rank)
            transport = self.member(ranks, rank, setup.device, setup.recorder, rejoined=life > 0)
            if life == 0 and rank in deaths:
                transport.dies_at = deaths[rank].time
                world.at(transport.dies_at, transport.die)
            try:
                results[rank] = do_work(job, transport, job.on_report and partial(job.on_report, rank))
                transport.close()
            except BaseException as error:
                dead = world.time >= transport.dies_at or isinstance(error, Killed)
                too_late = life > 0 and isinstance(error, PeerLost)  # no rank is left to let it in
                if not (dead or too_late):
                    if not isinstance(error, Exception):
                        raise
                    failures[rank] = failure_of(error, transport.peers)
                    world.stop()
            present.discard(rank)
            if not present:
                world.time = max(world.time, transport.clock)
                world.stop()  # no rank needs the events still on the agenda

        def start(rank: int, life: int) -> None:
            coroutines.append(world.start(lambda: run_rank(rank, life)))

        def on_death(rank: int) -> None:
            results[rank] = None  # its clock may have been at the end already
            death = deaths[rank]
            if rank not in job.expendable:
                failures[rank] = Failure("died", f"was killed at {death.time:g} virtual s")
                world.stop()
            elif death.returns is not None:
                world.at(max(world.time, death.returns), partial(on_restart, rank))

        def on_restart(rank: int) -> None:
            hosts = sorted(ranks.hosts & present)
            if hosts:
                present.add(rank)
                ranks.lives[rank] = 1
                start(rank, life=1)
            for host in hosts:
                world.at(world.time, partial(ranks.transports[host].returned, rank))

        ranks.after_death = on_death
        ranks.returning = {death.rank for death in self.deaths if death.returns is not None}
        with as_before(), _collecting_seldom(never=not self.compute):
            try:
                for rank in range(world_size):
                    start(rank, life=0)
                world.run()
                if failures:
                    raise explain(failures, job.roles, job.timeout)
                if any(not coroutine.dead for coroutine in coroutines):
                    raise Deadlock(with_advice(ranks.describe_waits()))
            finally:
                for coroutine in coroutines:
                    coroutine.throw()
        return [results[rank] for rank in range(world_size)]


@contextmanager
def _collecting_seldom(never: bool) -> Iterator[None]:
    """In the block, look for garbage in cycles less often: there are many objects here, and hardly any cycles.

    `never`: there are none, as nothing is computed.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*(0,) if never else (100_000, 1000, 1000))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
