"""Overlapped ring: gradients go round the ring in buckets, while the backward pass still computes the others.

The backward pass finishes the gradients of the last layers first. They fill buckets in that order, and a full one
begins its ring all-reduce at once, in the same order on every rank. After each further gradient, what has arrived is
taken and the next chunk is sent; `step` waits for the rest. (Li et al., 2020, arXiv 2006.15704, section 3.2.)

In the paper a thread of its own carries the messages. Here they advance only between two gradients of the pass, so a
layer that computes for long holds them up.

It does not pay where messages take no time, where the latency of 2 (N - 1) messages for each bucket is more than what
is hidden, or where nearly all parameters are in the layers whose gradients come last.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import Cost, Traffic
from strategies.all_reduce.hidden_communication import HiddenCommunication
from strategies.collectives import Rounds, average


@dataclass
class Bucket:
    """A part of g, and its way round the ring."""

    g: torch.Tensor
    tag: str
    parameters: frozenset[int]  # that have a part in it
    missing: set[int] = field(default_factory=set)  # whose gradients are not here yet
    has_begun: bool = False


@dataclass(kw_only=True)
class OverlappedRing(Strategy):
    """The ring in buckets, each on its way while the backward pass computes the gradients of the layers before it.

    The meter "hidden_communication": of the time from the start of a step's first bucket to the end of its last, the
    share that lay in the backward pass, over the steps of an epoch.
    """

    bucket_mb: float = 1.0
    """Megabytes of gradients in a bucket. (DistributedDataParallel: 25, and it cuts no tensor.)"""

    def cost(self, kind: str | None = None) -> Cost:
        """A ring for each bucket. The path is at most so long: nothing is hidden."""
        buckets = "ceil(P / (8 ceil(125000 bucket_mb)))"
        return Cost(
            worker=Traffic(f"2 (N - 1) {buckets}", "2 (N - 1) P / N"), path=Traffic("2 (N - 1)", "2 (N - 1) P / N")
        )

    def check(self, run: RunSize) -> None:
        """A bucket must hold something."""
        if not 0 < self.bucket_mb <= 1e9:
            raise UsageError(f"--bucket_mb {self.bucket_mb}: must be above 0 and at most 1e9, such as 25")

    def setup(self) -> None:
        """Cut g into buckets, from its end on: whole elements, of at most 8 bytes."""
        g, tensors = self.replica.g, self.replica.layout.slices
        length = 8 * math.ceil(125_000 * self.bucket_mb) // g.itemsize
        self.buckets: list[Bucket] = []
        for stop in range(g.numel(), 0, -length):
            start = max(0, stop - length)
            inside = frozenset(i for i, part in enumerate(tensors) if part.start < stop and start < part.stop)
            self.buckets.append(Bucket(g[start:stop], f"bucket {len(self.buckets)}", inside))
        self.rounds = Rounds(self.transport)
        self.n: int | None = None  # samples of this rank in the step, once they are known
        self.begun_at = 0.0  # when the step's first bucket began
        self.hidden = HiddenCommunication(self.transport)
        self.replica.on_gradient(self.take_gradient)

    def begin_step(self, n_samples: int) -> None:
        """From now on multiply each gradient of the backward pass by n_k and send it: it is complete."""
        self.n = n_samples
        for bucket in self.buckets:
            bucket.missing, bucket.has_begun = set(bucket.parameters), False

    def take_gradient(self, i: int) -> None:
        """During the backward pass: put the gradient of parameter `i` into its place; do what can be done."""
        if self.n is None:
            return
        self.replica.collect_one(i)
        for bucket in self.buckets:
            bucket.missing.discard(i)
        self.begin_full(self.n)
        self.rounds.advance()

    def step(self, n_samples: int) -> None:
        """g <- sum of n_k g_k / sum of n_k, over all ranks k; x <- optimizer(x, g)."""
        if self.n is None:
            self.begin_step(n_samples)
        g = self.replica.collect()
        ended = self.transport.now()  # the backward pass
        for bucket in self.buckets:
            bucket.missing.clear()
        self.begin_full(n_samples)
        n, *_ = [self.rounds.end(bucket.tag) for bucket in self.buckets]
        self.hidden.count(self.begun_at, ended)
        self.n = None
        self.updater.step(g.div_(n), n)
        self.replica.zero_grad()

    def begin_full(self, n: int) -> None:
        """Start each full bucket."""
        for bucket in itertools.takewhile(lambda bucket: not bucket.missing, self.buckets):  # in this order everywhere
            if not bucket.has_begun:
                bucket.has_begun = True
                if bucket is self.buckets[0]:
                    self.begun_at = self.transport.now()
                self.rounds.begin(bucket.g.mul_(n), n, bucket.tag)

    def finish(self) -> None:
        """Average the buffers over the ranks."""
        self.hidden.end_epoch()
        average(self.replica.b, self.transport)
