"""Streaming DiLoCo: local SGD whose layers are averaged a few at a time, while all ranks train on.

The blocks of the model are cut into P fragments, p = 0 .. P - 1, which take turns: o_p = floor(p H / P). At step t

    x_k <- optimizer(x_k, g_k)                       on each rank k, with a state of its own
    if (t - o_p) mod H = 0:
        send n_k x_k,p, to be summed round a ring    n_k: the samples of rank k since p was sent last
    if (t - o_p - tau) mod H = 0:
        d_p = x0_p - sum of n_k x_k,p / sum of n_k   as they were sent, tau steps ago
        x0_p <- Nesterov(x0_p, d_p)                  x0 is the same on all ranks
        x_k,p <- alpha x_k,p + (1 - alpha) x0_p

(Douillard et al., 2025, arXiv 2501.18512. There each rank sends x0_p - x_k,p, which has the same mean, in 4 bits.) With
P = 1, tau = 0 and alpha = 0 it is DiLoCo: `local_sgd --outer_optimizer nesterov`.

- `eager` (Kale et al., 2025, arXiv 2502.12996): a rank takes its own difference at once, and those of the others of
  the round before, so that a message has H steps to arrive. Each rank has an x0 of its own. At step t with
  (t - o_p) mod H = 0

    d_k = x0_k,p - x_k,p
    x0_k,p <- Nesterov(x0_k,p, the mean of d_k and of the others' d_j of H steps ago, weighted by n_j)
    x_k,p <- x0_k,p;  send n_k d_k, to be summed round a ring

  In the first round the others' d_j are 0. In the paper all ranks have equal weights.

What is evaluated is the mean of the x_k. The end of an epoch and a checkpoint wait for all messages on their way; the
sums that they bring are kept, and used in their turn. Those whose turn does not come before the run ends are not used.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from records.errors import UsageError, between
from strategies.collectives import Ring, give, go_round
from strategies.common.base import RunSize
from strategies.common.traits import Cost, Footprint, Traffic
from strategies.local_models.drifting import Drifting
from transports.base import Message, Work


@dataclass
class Fragment:
    """Blocks of the model that are sent together, and their way round the ring."""

    number: int
    tag: str
    offset: int
    x: torch.Tensor
    x0: nn.Parameter
    sum: torch.Tensor  # of what all ranks send
    own: torch.Tensor  # of it, what this rank has sent, if eager
    ring: Ring | None = None  # while it goes round
    sent: list[Work] = field(default_factory=list)  # after which the sum may be changed


@dataclass(kw_only=True)
class StreamingDiLoCo(Drifting):
    """Local SGD whose layers are averaged a few at a time, while all train on: no step waits for all of x."""

    fragments: int = 2
    """P: parts into which the blocks of the model are cut, by their number; at most as many as there are blocks."""
    local_steps: int = 4
    """H: steps of each rank between two averagings of a fragment."""
    delay: int | None = None
    """tau: steps after which the sum of a fragment is used, fewer than local_steps. Default: 1. Not with --eager."""
    blend: float | None = None
    """alpha: the share of its own x that a rank keeps. Default: 0.5. Not with --eager."""
    outer_lr: float = 0.7
    """The learning rate of the outer optimizer, SGD with Nesterov momentum."""
    outer_momentum: float = 0.9
    """The momentum of the outer optimizer."""
    eager: bool = False
    """Use a rank's own difference at once, and those of the others a round late."""
    block_modules: str = ""
    """The modules that are blocks, by name, with commas. Default: the children of the longest ModuleList or
    Sequential."""

    def cost(self, kind: str | None = None) -> Cost:
        """A ring of each fragment every local_steps steps. What of it is hidden has no simple form."""
        return Cost(worker=Traffic("2 (N - 1) min(fragments, B) / local_steps", "2 (N - 1) P / N / local_steps"))

    def memory(self, role: str) -> Footprint:
        """The mean, x0 and its momentum, and what travels; if eager, what this rank has sent."""
        state = "S" if self.outer_momentum == 0 else "S + P"
        return Footprint(optimizer_state=state, other="4 P" if self.eager else "3 P")

    def check(self, run: RunSize) -> None:
        """A fragment arrives before it is sent again."""
        between(self, "fragments", 1)
        between(self, "local_steps", 1)
        for option in ("delay", "blend"):
            if self.eager and getattr(self, option) is not None:
                raise UsageError(f"--{option} {getattr(self, option)}: --eager has none; leave one of the two out")
        if self.delay is not None:
            between(self, "delay", 0, self.local_steps - 1)
        for option, high in (("blend", 1.0), ("outer_lr", 1e30), ("outer_momentum", 1.0)):
            if (value := getattr(self, option)) is not None and not 0 <= value < high:
                raise UsageError(f"--{option} {value}: must be at least 0 and less than {high:g}")

    def setup(self) -> None:
        """Cut x into fragments; make the outer optimizer."""
        super().setup()
        x = self.replica.x
        self.tau = min(1, self.local_steps - 1) if self.delay is None else self.delay
        self.alpha = 0.5 if self.blend is None else self.blend
        self.x0 = torch.empty_like(x)
        self.own = torch.zeros(x.numel() if self.eager else 0, dtype=x.dtype, device=x.device)
        self.sums = self.transport.allocate(x.numel(), x.dtype)
        self.blocks = sorted(self.replica.blocks(self.block_modules), key=lambda block: block.part.start)
        self.cut: list[Fragment] = []
        P, B = min(self.fragments, len(self.blocks)), len(self.blocks)
        for p in range(P):
            part = slice(self.blocks[p * B // P].part.start, self.blocks[(p + 1) * B // P - 1].part.stop)
            x0 = nn.Parameter(self.x0[part])
            views = x[part], x0, self.sums[part], self.own[part]
            self.cut.append(Fragment(p, f"fragment {p}", p * self.local_steps // P, *views))
        momentum = self.outer_momentum
        self.outer = torch.optim.SGD([f.x0 for f in self.cut], self.outer_lr, momentum, nesterov=momentum > 0)
        self.n_taken, self.n_sent, self.n_summed = (torch.zeros(P, dtype=torch.int64, device="cpu") for _ in range(3))
        for name in ("x0", "own", "outer"):
            self.keep(name, getattr(self, name))
        for name in ("sums", "n_taken", "n_sent", "n_summed"):
            self.keep(name, getattr(self, name), counted=False)

    def join(self, resumed: bool) -> None:
        """All begin at the same x, which is x0."""
        super().join(resumed)
        if not resumed:
            self.x0.copy_(self.replica.x)

    def begin_step(self, n_samples: int) -> None:
        """Take what has come."""
        self.receive()

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); send the fragments whose turn it is, and use those that are to arrive."""
        self.descent.step(self.replica.collect(), n_samples * self.transport.world_size)
        self.replica.zero_grad()
        self.n_taken += n_samples
        self.receive()
        for fragment in self.cut:
            after = (self.descent.version - fragment.offset) % self.local_steps
            if after == 0:
                self.exchange(fragment) if self.eager else self.send(fragment)
            if after == self.tau and not self.eager:
                self.use(fragment)

    def send(self, fragment: Fragment) -> None:
        """Send n_k x_k,p."""
        p = fragment.number
        torch.mul(fragment.x, int(self.n_taken[p]), out=fragment.sum)
        self.begin(fragment)

    def begin(self, fragment: Fragment) -> None:
        """Send the fragment's sum, as it is on this rank, round the ring."""
        p, n = fragment.number, int(self.n_taken[fragment.number])
        self.n_taken[p] = 0
        self.n_sent[p] = n
        fragment.ring = go_round(fragment.sum, self.transport, n, fragment.tag)
        self.give(fragment, None)

    def use(self, fragment: Fragment) -> None:
        """x0_p <- Nesterov(x0_p, d_p); x_k,p <- alpha x_k,p + (1 - alpha) x0_p, if a sum of the fragment was sent."""
        n = self.receive(fragment)
        if n == 0:
            return
        torch.sub(fragment.x0.data, fragment.sum.div_(n), out=fragment.sum)
        self.take_outer_step(fragment)
        torch.lerp(fragment.x0.data, fragment.x, self.alpha, out=fragment.x)

    def exchange(self, fragment: Fragment) -> None:
        """Eager: take the outer step with this rank's own difference and the others' of H steps ago; send its own."""
        p, N = fragment.number, self.transport.world_size
        n_all, n = self.receive(fragment), int(self.n_taken[fragment.number])
        own = fragment.own
        others = fragment.sum.sub_(own) if n_all else fragment.sum.zero_()
        torch.sub(fragment.x0.data, fragment.x, out=own).mul_(n)
        others.add_(own).div_(n + (n_all - int(self.n_sent[p]) if n_all else (N - 1) * n))
        self.take_outer_step(fragment)
        fragment.x.copy_(fragment.x0.data)
        fragment.sum.copy_(own)
        self.begin(fragment)

    def take_outer_step(self, fragment: Fragment) -> None:
        """x0_p <- Nesterov(x0_p, d_p), d_p being in the place of the fragment's sum, which is used then."""
        fragment.x0.grad = fragment.sum
        with self.transport.recorder.phase("update", 0):
            self.outer.step()
        fragment.x0.grad = None
        self.n_summed[fragment.number] = 0

    # Messages

    def receive(self, due: Fragment | None = None) -> int:
        """Give each fragment on its way the messages that have come, and wait for all those of the one that is `due`.

        Returns the samples in the sum of this one; 0 if none was sent.
        """
        left = (self.transport.rank - 1) % self.transport.world_size
        while on_the_way := {fragment.tag: fragment for fragment in self.cut if fragment.ring}:
            tags = tuple(on_the_way)
            wait = due is not None and due.ring is not None
            message = self.transport.recv(left, tags) if wait else self.transport.recv(left, tags, 0)
            if message is None:
                break
            self.give(on_the_way[message.tag], message)
        if due is None:
            return 0
        for work in due.sent:
            work.wait()
        due.sent = []
        return int(self.n_summed[due.number])

    def give(self, fragment: Fragment, message: Message | None) -> None:
        """Give a fragment the message that it waits for, or None to begin with."""
        assert fragment.ring is not None, "it is on its way"
        if (ended := give(fragment.ring, message)) is not None:
            fragment.ring = None
            self.n_summed[fragment.number], fragment.sent = ended

    def receive_all(self) -> None:
        """Wait for all that is on its way."""
        for fragment in self.cut:
            self.receive(fragment)

    def finish(self) -> None:
        """Wait for all that is on its way; average the buffers over the ranks; each keeps its x_k."""
        self.receive_all()
        super().finish()

    def state_dict(self) -> dict[str, Any]:
        """See Strategy; first wait for all that is on its way, as all ranks do that call it."""
        self.receive_all()
        return super().state_dict()
