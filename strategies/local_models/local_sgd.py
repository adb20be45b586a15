"""Local SGD: every rank trains a model of its own, and every H steps all begin again at their mean.

    H times:  x_k <- optimizer(x_k, g_k)                      on each rank k, with a state of its own
    then:     x_k <- sum of n_k x_k / sum of n_k              n_k: the samples of rank k in this round

- This is FedAvg. (McMahan et al., 2017, arXiv 1602.05629, algorithm 1; Stich, 2019, arXiv 1805.09767.)
- `--outer_optimizer nesterov` takes the mean for a direction. (Douillard et al., 2023, DiLoCo, arXiv 2311.08105,
  algorithm 1. There the inner optimizer is AdamW, and H = 500.) With `--optimizer muon`: MuLoCo, arXiv 2505.23725.
- `--codec` sends codes of how far each x_k has come. With `--codec topk --error_decay 0.95 --optimizer adamw`:
  SparseLoCo, arXiv 2508.15706, but for its chunks of 2-bit values.

The last two end a round by an outer step: see `outer_step.py`.

Rounds go on from one epoch to the next. At any time the run evaluates and saves the mean of the x_k, so the last,
shorter round of a run is averaged too. The states of the inner optimizers, such as momentum, stay where they are.
"""

from dataclasses import dataclass

import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import option
from gradwire.core.strategy.codes import GATHERED, KINDS, LINEAR
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Footprint, Traffic, Traits, Weight
from strategies.collectives import ring_all_reduce
from strategies.local_models.drifting import Drifting
from strategies.local_models.outer_step import OuterStep


@dataclass(kw_only=True)
class LocalSGD(Drifting):
    """Every rank takes local_steps optimizer steps of its own; then the models are averaged (FedAvg, DiLoCo)."""

    local_steps: int = option(4, least=1)
    """H: steps of each rank between two averagings."""
    outer_optimizer: str = option("average", choices=("average", "nesterov"))
    """What is done with the mean: average (it is the new x) or nesterov (x takes a step towards it, as in DiLoCo)."""
    outer_lr: float | None = option(None, below=1e30)
    """Of --outer_optimizer nesterov: its learning rate. Default: 0.7."""
    outer_momentum: float | None = option(None, below=1.0)
    """Of --outer_optimizer nesterov: its momentum. Default: 0.9."""

    traits = Traits(agree=False, carries=frozenset(KINDS))

    def cost(self, kind: str | None = None) -> Cost:
        """A ring every local_steps steps; codes that cannot be added go to everyone."""
        if kind == GATHERED:
            every = Traffic("(N - 1) / local_steps", "(N - 1) G / local_steps")
            return Cost(worker=every, path=Traffic("1 / local_steps", every.bytes))
        messages = "4 (N - 1) / local_steps" if kind == LINEAR else "2 (N - 1) / local_steps"
        ring = Traffic(messages, "2 (N - 1) G / N / local_steps")
        return Cost(worker=ring, path=ring)

    @property
    def period(self) -> int:
        """A round."""
        return self.local_steps

    def weight(self, workers: int) -> Weight | str:
        """An average keeps that of a gradient in the mean of all x_k."""
        return Weight(workers) if self.outer_optimizer == "average" else "the outer optimizer has momentum"

    def memory(self, role: str) -> Footprint:
        """The mean; with an outer optimizer, the x that the round began with, and its momentum."""
        if self.outer_optimizer == "average":
            return super().memory(role)
        return Footprint(optimizer_state="S" if self.outer_momentum == 0 else "S + P", other="2 P")

    def check(self, run: RunSize) -> None:
        """The options of the outer optimizer need one."""
        for name in ("outer_lr", "outer_momentum"):
            if self.outer_optimizer == "average" and (value := getattr(self, name)) is not None:
                raise UsageError(f"--{name} {value}: averaging has none; give --outer_optimizer nesterov too")

    def setup(self) -> None:
        """Begin a round; make the outer optimizer, if there is one."""
        super().setup()
        self.n_taken = torch.zeros(1, dtype=torch.int64, device="cpu")  # n_k
        self.keep("n_taken", self.n_taken, counted=False)
        self.outer = self.make_outer_step() if self.coding or self.outer_optimizer == "nesterov" else None

    def make_outer_step(self) -> OuterStep:
        """Return the outer step: with a codec alone, that is averaging, a step of the whole way."""
        averages, recorder = self.outer_optimizer == "average", self.transport.recorder
        lr = 1.0 if averages else 0.7 if self.outer_lr is None else self.outer_lr
        momentum = 0.0 if averages else 0.9 if self.outer_momentum is None else self.outer_momentum
        with recorder.holding("codec state" if averages else "other"):
            self.before = torch.nn.Parameter(torch.empty_like(self.replica.x))
        outer = OuterStep(self.before, lr, momentum, recorder)
        self.keep("before", self.before)
        self.keep("outer", outer.sgd)
        return outer

    def join(self, resumed: bool) -> None:
        """All begin at the same x, which the first round began with."""
        super().join(resumed)
        if self.outer and not resumed:
            self.before.data.copy_(self.replica.x)

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); after H steps, average."""
        self.updater.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()
        self.n_taken += n_samples
        if self.updater.version % self.local_steps == 0:
            self.end_round()
            self.n_taken.zero_()

    def end_round(self) -> None:
        """x_k <- sum of n_k x_k / sum of n_k, or the outer step's result with it."""
        x, mean, n_k = self.replica.x, self.mean, int(self.n_taken)
        if self.outer and self.coding:
            x.copy_(self.outer.by_codes(x, n_k, self.coding, self.all_reduce, mean))
        else:
            mean.copy_(x).mul_(n_k)
            mean.div_(self.all_reduce(mean, n_k))
            x.copy_(self.outer.towards(mean) if self.outer else mean)

    def all_reduce(self, vector: torch.Tensor, n: int) -> int:
        """See `ring_all_reduce`."""
        return ring_all_reduce(vector, self.transport, n)
