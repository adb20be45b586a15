"""All-reduce: the fastest for the gradient's length, the ranks, the network and the cores, chosen when the run begins.

    when it begins:  A <- argmin over all-reduces a of T_a(N, P)
    in every step:   g <- sum of n_k g_k, summed by A

T_a(N, P) are the seconds that a takes for P bytes on N ranks. Where the network is known, closed forms of its latency
and bandwidth give them (Thakur, Rabenseifner & Gropp, 2005, Optimization of collective communication operations in
MPICH, compare all-reduces so, and take one for short vectors and another for long ones). Where it is not, they are
timed: see `choosing.py`.

All-reduces add in different orders, so that a run which was timed may differ in rounding from the next, which may take
another. A resumed run takes the same; --algorithm with what a run took repeats it bit for bit.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from typing_extensions import override

from gradwire.core.records.errors import one_of
from gradwire.core.strategy.codes import DENSE
from gradwire.core.strategy.cost_model import sources
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Choice, Cost, Footprint, Traits
from gradwire.core.transports.base import Transport
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.all_reduce.choosing import PROCESSES, compare
from strategies.all_reduce.predictions import all_reduces, candidates

FASTEST = "fastest"


def choose(algorithm: str, transport: Transport, vector: torch.Tensor, nbytes: float) -> Choice:
    """Return on all ranks the all-reduce of this name, or the fastest for `nbytes`, and why.

    If they are timed, `vector` is overwritten.
    """
    N, rates, us = transport.world_size, transport.rates, dict[str, float]()
    known = candidates(N, nbytes, rates or PROCESSES)
    why = "as --algorithm says"
    if algorithm == FASTEST:
        T, why = compare(transport, vector, known, nbytes)
        algorithm, us = min(T, key=T.__getitem__), {name: 1e6 * seconds for name, seconds in T.items()}
    options = asdict(known[algorithm] if algorithm in known else all_reduces()[algorithm]())
    return Choice(algorithm, options, f"--algorithm {algorithm}", f"{why}, {N} ranks, {nbytes:.0f} bytes", us)


@dataclass(kw_only=True)
class FastestAllReduce(AllReduceSGD):
    """The fastest all-reduce for the vector, the ranks, the network and the cores: by theory, or timed at the start."""

    algorithm: str = FASTEST
    """fastest, or an all-reduce by its name, such as ring or halving_doubling."""

    traits = Traits(carries=frozenset({DENSE}))

    def __post_init__(self) -> None:
        """Before it has chosen, be what is named, or the ring, which suits long vectors."""
        self.choice: Choice | None = None
        self.chosen = all_reduces().get(self.algorithm, all_reduces()["ring"])()

    # When the run begins

    def join(self, resumed: bool) -> None:
        """Choose, unless a checkpoint says what was chosen."""
        super().join(resumed)
        if not resumed:
            P = sum(self.coding.codec.count()) if self.coding else self.replica.x.nbytes
            self.take(choose(self.algorithm, self.transport, self.replica.g, P))

    def take(self, choice: Choice) -> None:
        """Sum by this all-reduce from here on; record its lines, and its bytes."""
        self.choice, self.chosen = choice, all_reduces()[choice.taken](**choice.options)
        self.chosen.transport = self.transport
        self.transport.recorder.follow(sources(type(self)) | sources(type(self.chosen)))
        if self.coding:
            self.coding.dense = self.dense_bytes()

    # In every step

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """Sum as the chosen one does."""
        return self.chosen.all_reduce(vector, n)

    # Known before it starts, and kept

    @override
    def check(self, run: RunSize) -> None:
        one_of(self, "algorithm", (FASTEST, *all_reduces()))

    def cost(self, kind: str | None = None) -> Cost:
        """Return that of the chosen one; before it has chosen, the time is not known."""
        cost = self.chosen.cost()
        return cost if self.choice or self.algorithm != FASTEST else Cost(cost.worker)

    def memory(self, role: str) -> Footprint:
        """Return the most that one of them holds: what comes has a vector of its own."""
        return Footprint(other="P")

    def state_dict(self) -> dict[str, Any]:
        """See Strategy: with what was chosen."""
        assert self.choice is not None
        return super().state_dict() | {"choice": asdict(self.choice)}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.take(Choice(**state["choice"]))
