"""All-reduce: the fastest for the gradient's length, the ranks, the network and the cores, chosen when the run begins.

`choose`, in `choosing.py`, decides by closed forms where the network is known, and by timing where it is not. All ranks
then sum by what was chosen, as that file says.

All-reduces add in different orders, so that a run which was timed may differ in rounding from the next, which may take
another. A resumed run takes the same; --algorithm with what a run took repeats it bit for bit.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from typing_extensions import override

from gradwire.core.records.errors import one_of
from gradwire.core.strategy.codes import DENSE
from gradwire.core.strategy.cost_model import evaluate_cost, sources
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Choice, Cost, Footprint, Traits
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD
from strategies.all_reduce.choosing import FASTEST, choose
from strategies.all_reduce.predictions import all_reduces


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

    def join(self, resumed: bool) -> None:
        """Choose, unless a checkpoint says what was chosen."""
        super().join(resumed)
        if not resumed:
            nbytes = sum(self.coding.codec.count()) if self.coding else self.replica.x.nbytes
            self.be(choose(self.algorithm, self.transport, self.replica.g, nbytes))

    def be(self, choice: Choice) -> None:
        """Sum by the all-reduce that was chosen from here on; record its lines, and its bytes."""
        self.choice, self.chosen = choice, all_reduces()[choice.taken](**choice.options)
        self.chosen.transport = self.transport
        self.transport.recorder.follow(sources(type(self)) | sources(type(self.chosen)))
        if self.coding:
            N, x = self.transport.world_size, self.replica.x
            self.coding.dense = evaluate_cost(self, self.cost().worker, N, x.nbytes, itemsize=x.itemsize)[1]

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """Sum as the chosen one does."""
        return self.chosen.all_reduce(vector, n)

    def state_dict(self) -> dict[str, Any]:
        """See Strategy: with what was chosen."""
        assert self.choice is not None
        return super().state_dict() | {"choice": asdict(self.choice)}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.be(Choice(**state["choice"]))
