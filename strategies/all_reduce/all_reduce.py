"""All-reduce: the fastest for the gradient's length, the ranks, the network and the cores, chosen when the run begins.

`choose`, in `choosing.py`, decides by closed forms where the network is known, and by timing where it is not. All ranks
then sum by what was chosen, as that file says.

All-reduces add in different orders, so that a run which was timed may differ in rounding from the next, which may take
another. A resumed run takes the same; --algorithm with what a run took repeats it bit for bit.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

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
    choice: ClassVar[Choice | None] = None  # of an instance that has begun

    def __post_init__(self) -> None:
        """Until one is chosen, stand for the one that is named, or for the ring, which suits long vectors."""
        known = all_reduces()
        self.chosen = known.get(self.algorithm, known["ring"])()

    @override
    def check(self, run: RunSize) -> None:
        one_of(self, "algorithm", (FASTEST, *all_reduces()))

    def join(self, resumed: bool) -> None:
        """Choose, unless a checkpoint says what was chosen."""
        super().join(resumed)
        if not resumed:
            nbytes = sum(self.coding.codec.count()) if self.coding else self.replica.x.nbytes
            self.adopt(choose(self.algorithm, self.transport, self.replica.g, nbytes))

    def adopt(self, choice: Choice) -> None:
        """Stand for the all-reduce that was chosen, in the records too."""
        self.choice = choice  # type: ignore[misc]  # of the instance
        self.chosen = all_reduces()[choice.taken](**choice.options)
        self.chosen.transport = self.transport
        self.transport.recorder.follow(sources(type(self)) | sources(type(self.chosen)))
        if self.coding:
            N, x = self.transport.world_size, self.replica.x
            self.coding.dense = evaluate_cost(self, self.cost().worker, N, x.nbytes, itemsize=x.itemsize)[1]

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """As the one that was chosen."""
        return self.chosen.all_reduce(vector, n)

    # What is known of it: as of the one that was chosen

    def cost(self, kind: str | None = None) -> Cost:
        """Before one is chosen, in which time is not known."""
        cost = self.chosen.cost()
        return cost if self.choice or self.algorithm != FASTEST else Cost(cost.worker)

    def memory(self, role: str) -> Footprint:
        """Before one is chosen, the most."""
        return self.chosen.memory(role) if self.choice else Footprint(other="P")

    def state_dict(self) -> dict[str, Any]:
        """See Strategy: with what was chosen."""
        assert self.choice is not None
        return super().state_dict() | {"choice": asdict(self.choice)}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.adopt(Choice(**state["choice"]))
