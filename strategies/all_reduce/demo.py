"""DeMo: each rank has its own momentum; only the largest coefficients of the momentum's cosine transform travel.

    M_k <- beta M_k + g_k                           on each rank k
    q_k <- the top_k largest of each chunk of DCT(M_k)
    M_k <- M_k - IDCT(q_k)                          the momentum loses what is sent
    send q_k to all
    x <- x - eta sign(IDCT(mean of q_k))            on all ranks, by sgd

(Peng, Quesnelle, Kingma, 2024, Decoupled momentum optimization, arXiv 2411.19870.) The mean is sum of n_k q_k / sum of
n_k, n_k being the samples of rank k. With all coefficients nothing is left in M_k: x <- x - eta sign(mean of g_k).

In the authors' program M_k is a sum of eta g_k: with one eta the same, for a sign has no scale. There a matrix is cut
into squares, here each tensor into runs of elements; there a coefficient's mean is over the ranks that sent it, here
it counts as 0 on the others.

--weight_decay is lambda in x <- x - eta (sign(...) + lambda x); --clip_norm bounds each g_k. All ranks have the same x.
Nothing is on its way between two steps; a checkpoint has the M_k of each rank.
"""

from dataclasses import dataclass, replace

import torch

from gradwire.compression import Setting
from gradwire.compression.coding import codec_factory
from gradwire.compression.of_strategies.demo import FastComponents
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import option
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import Cost, Traits
from gradwire.core.strategy.updater import optimizer_of
from strategies.all_reduce.all_gather import AllGather


@dataclass(kw_only=True)
class DeMo(AllGather):
    """Every rank sends the largest DCT coefficients of its momentum; all step by the sign of their mean (DeMo)."""

    chunk_size: int = option(64, least=1)
    """Elements of a tensor that are transformed together."""
    top_k: int = option(4, least=1)
    """Coefficients of a chunk that are sent; all of them, if it has no more."""
    momentum_decay: float = option(0.999, below=1.0)
    """beta: the share of the momentum that stays in a step."""

    traits = Traits(steps_by_mean=False, defaults={"momentum": 0.0, "lr": 0.01})

    def cost(self, kind: str | None = None) -> Cost:
        """Each rank sends N - 1 codes at a time."""
        code = FastComponents(chunk_size=self.chunk_size, top_k=self.top_k, momentum_decay=self.momentum_decay)
        return replace(super().cost(kind), code=code)

    def check(self, run: RunSize) -> None:
        """The steps are those of sgd."""
        if run.optimizer:
            made = optimizer_of(torch.optim.SGD, run.optimizer, f"{self.name} takes steps of sgd", "take sgd")
            if momentum := made.param_groups[0]["momentum"]:
                raise UsageError(f"--momentum {momentum}: {self.name} has its own, --momentum_decay; leave it out")

    def setup(self) -> None:
        """M_k <- 0."""
        make = codec_factory(self.cost().code, Setting())
        assert make, "its own codec"
        with self.transport.recorder.holding("codec state"):
            self.coding = self._code_by(make)
        self.clip_norm, self.updater.clip_norm = self.updater.clip_norm, 0.0  # it bounds g_k, not a sign

    def step(self, n_samples: int) -> None:
        """x <- x - eta sign(IDCT(mean of q_k))."""
        assert self.coding, "as setup has made it"
        g = self.replica.collect()
        if self.clip_norm:
            g.mul_(torch.clamp(self.clip_norm / (torch.linalg.vector_norm(g) + 1e-6), max=1.0))
        n = self.coding.mean(g, n_samples, self.all_reduce)
        self.updater.lacking = self.coding.missing
        self.updater.missing.mark(g.sign_(), self.coding.missing)
        self.updater.step(g, n)
        self.replica.zero_grad()
