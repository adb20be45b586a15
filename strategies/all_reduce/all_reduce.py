"""All-reduce: the fastest for the gradient's length, the ranks, the network and the cores, chosen when the run begins.

Where the network is known, in virtual time or by --bandwidth and --latency, the closed forms of `expected.py` decide.
All-reduces that have none there (for N no power of two, if cards share fairly) are timed, with the best of the others.
Where the network is not known, all are timed for some milliseconds, on processes the three likeliest; where ranks share
cores, these are those with the fewest messages in all, not with the shortest chain of them. Of each counts the slowest
rank, in the median of some blocks of calls. Rank 0 decides, and tells all.

All-reduces add in different orders, so that a run which was timed may differ in rounding from the next, which may take
another. A resumed run takes the same; --algorithm with what a run took repeats it bit for bit.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, ClassVar

import torch

from gradwire.compression import DENSE
from gradwire.core.records.errors import one_of
from gradwire.core.records.machine import usable_cores
from gradwire.core.strategy.forms import closed_form, sources
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Choice, Cost, Footprint, Traits
from gradwire.core.transports.base import Transport
from gradwire.core.transports.throttle import IN_ORDER, Rates
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.all_reduce.expected import all_reduces, candidates, expect, expect_on_cores

FASTEST = "fastest"
_PROCESSES = Rates(bandwidth=4e9, latency=2e-5, overhead=2e-5, sharing=IN_ORDER)  # roughly, to find whom to time
_LIKELIEST, _BLOCKS, _BLOCK_S, _MOST_CALLS = 3, 5, 1e-3, 20


@dataclass(kw_only=True)
class FastestAllReduce(AllReduceSGD):
    """The fastest all-reduce for the vector, the ranks, the network and the cores: by theory, or timed at the start."""

    algorithm: str = FASTEST
    """fastest, or an all-reduce by its name, such as ring or halving_doubling."""

    traits = Traits(carries=frozenset({DENSE}))
    choice: ClassVar[Choice | None] = None  # of an instance, when it has begun
    taken: ClassVar[AllReduceSGD | None] = None  # of an instance, when it has begun

    def check(self, run: RunSize) -> None:
        """See Strategy."""
        one_of(self, "algorithm", (FASTEST, *all_reduces()))

    @property
    def _stands_for(self) -> AllReduceSGD:
        return self.taken or all_reduces()["ring" if self.algorithm == FASTEST else self.algorithm]()

    def cost(self, kind: str | None = None) -> Cost:
        """As what it takes. Before it has chosen: as the ring, which suits long vectors; in which time is not known."""
        cost = self._stands_for.cost()
        return cost if self.taken or self.algorithm != FASTEST else Cost(cost.worker)

    def in_formulas(self) -> dict[str, Any]:
        """As what it takes."""
        return self._stands_for.in_formulas()

    def memory(self, role: str) -> Footprint:
        """As what it takes; before it has chosen, the most."""
        return self.taken.memory(role) if self.taken else Footprint(other="P")

    def join(self, resumed: bool) -> None:
        """Choose, unless a checkpoint says what was chosen."""
        super().join(resumed)
        if not resumed:
            self._take(self._choose())

    def _choose(self) -> Choice:
        N, x = self.transport.world_size, self.replica.x
        nbytes = sum(self.coding.codec.count()) if self.coding else x.nbytes
        if self.algorithm == FASTEST:
            return choose(self.transport, self.replica.g, nbytes)
        why = f"as --algorithm says, {N} ranks, {nbytes:.0f} bytes"
        taken = candidates(N, nbytes, self.transport.rates or _PROCESSES).get(self.algorithm, self._stands_for)
        return Choice(self.algorithm, asdict(taken), f"--algorithm {self.algorithm}", why, {})

    def _take(self, choice: Choice) -> None:
        kind = all_reduces()[choice.taken]
        self.choice = choice  # type: ignore[misc]
        self.taken = kind(**choice.options)  # type: ignore[misc]
        self.taken.transport = self.transport
        self.transport.recorder.follow(sources(type(self)) | sources(kind))
        if self.coding:
            N, x = self.transport.world_size, self.replica.x
            self.coding.dense = closed_form(self, self.cost().worker, N, x.nbytes, itemsize=x.itemsize)[1]

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """As what it takes."""
        return self._stands_for.all_reduce(vector, n)

    def state_dict(self) -> dict[str, Any]:
        """See Strategy: with what was chosen."""
        return super().state_dict() | {"choice": asdict(self.choice)}  # type: ignore[arg-type]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Strategy."""
        super().load_state_dict(state)
        self._take(Choice(**state["choice"]))


def choose(transport: Transport, vector: torch.Tensor, nbytes: float) -> Choice:
    """Return on all ranks the fastest all-reduce for `nbytes`, and why. If they are timed, `vector` is overwritten."""
    N, rates = transport.world_size, transport.rates
    known, why = candidates(N, nbytes, rates or _PROCESSES), "by the closed forms"
    forms = {name: expect(kind, N, nbytes, rates) if rates else None for name, kind in known.items()}
    seconds = {name: of for name, of in forms.items() if of is not None}
    if len(seconds) < len(known):
        best = min(seconds, key=seconds.__getitem__, default=None)
        why = f"as timed, {best} with those that have no closed form" if best else "as timed"
        timed = {name: kind for name, kind in known.items() if name not in seconds or name == best}
        seconds = _time(transport, vector, timed, nbytes)
    name = min(seconds, key=seconds.__getitem__)
    us = {key: 1e6 * of for key, of in seconds.items()}
    return Choice(name, asdict(known[name]), f"--algorithm {name}", f"{why}, {N} ranks, {nbytes:.0f} bytes", us)


def _time(
    transport: Transport, vector: torch.Tensor, known: dict[str, AllReduceSGD], nbytes: float
) -> dict[str, float]:
    """Return the seconds of the likeliest to be the fastest; where time is virtual, of all, each called once."""
    N, vector = transport.world_size, vector[: max(1, round(nbytes) // vector.itemsize)]
    with transport.recorder.paused():
        calls, blocks = 1, 1
        if transport.recorder.time_passes is None:
            cores = _agree(transport, usable_cores(), lambda of_all: len(set().union(*of_all)))
            alike = {expect_on_cores(known[name], N, nbytes, _PROCESSES, cores): name for name in reversed(known)}
            known = {alike[of]: known[alike[of]] for of in sorted(alike)[:_LIKELIEST]}  # of those alike the first
            calls, blocks = max(1, min(_MOST_CALLS, int(_BLOCK_S / min(alike)))), _BLOCKS
        spans: dict[str, list[float]] = {name: [] for name in known}
        for name in [*known] * (blocks + 1):  # the first block warms up
            known[name].transport = transport
            transport.barrier()
            t0 = transport.now()
            for _ in range(calls):
                known[name].all_reduce(vector, 0)
            transport.barrier()
            spans[name].append((transport.now() - t0) / calls)
        return _agree(transport, spans, lambda of_all: {name: median(of[1:]) for name, of in of_all[0].items()})


def _agree(transport: Transport, own: Any, decide: Callable[[list[Any]], Any]) -> Any:
    """Return on all ranks what rank 0 makes of what each has."""
    if transport.rank:
        transport.isend(own, 0, "to choose")
        return transport.recv(0, "chosen").object
    found = decide([own, *(transport.recv(peer, "to choose").object for peer in transport.peers)])
    for peer in transport.peers:
        transport.isend(found, peer, "chosen")
    return found
