"""Lab 5, to be filled in: lost updates. The text of the lab is in 5_lost_updates.ipynb.

python -m lessons.check lost_updates lessons/lost_updates.py

python train.py --strategy lessons.lost_updates:Mine --n_gpus 4      # when it is right: trains by it
"""

from dataclasses import dataclass

import torch

from gradwire.core.transports.base import Transport
from lessons import param_server
from lessons.labs.lost_updates import serve
from strategies import Cost, Traffic, Traits
from strategies.collectives import broadcast

SERVER = 0


def push(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    """Client: send the server what this client has added to x [P] and not pushed yet.

    x is the client's copy, to which its steps are added; `base` [P] is memory for what you like, and keeps its elements
    from call to call. It begins as a copy of the first x.
    """
    raise NotImplementedError(
        "push: send a vector to rank 0 with the tag 'push'. What of x does the server not have yet, and what must base "
        "be afterwards, so that the next push does not say it again?"
    )


def fetch(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    """Client: replace x [P], in place, by the server's x and what this client has not pushed yet."""
    raise NotImplementedError(
        "fetch: send None to rank 0 with the tag 'fetch', receive 'parameters' from it, and leave in x what comes and "
        "what this client has not pushed; which base does the next push need?"
    )


def apply(x: torch.Tensor, pushed: torch.Tensor) -> None:
    """Server: take what a client has pushed into x [P], in place."""
    raise NotImplementedError("apply: how does what a client pushes come into x, in whichever order pushes come?")


@dataclass(kw_only=True)
class Mine(param_server.Mine):
    """Workers take steps of their own; by the functions above they push after each, and fetch after every n_fetch."""

    n_fetch: int = 4
    """Steps of a worker between two fetches of the server's parameters."""

    traits = Traits(asynchronous=True, ranks=(2, None), defaults={"momentum": 0.0})
    push = staticmethod(push)
    fetch = staticmethod(fetch)
    apply = staticmethod(apply)

    def cost(self, kind: str | None = None) -> Cost:
        """A push after each step; x every n_fetch steps."""
        return Cost(worker=Traffic("1 + 1 / n_fetch", "P"), server=Traffic("(N - 1) / n_fetch", "(N - 1) P / n_fetch"))

    def setup(self) -> None:
        """Have a base."""
        self.base = torch.empty_like(self.replica.x)
        self.n = 0  # samples of this worker's epoch

    def join(self, resumed: bool) -> None:
        """All begin at the same x."""
        super().join(resumed)
        self.base.copy_(self.replica.x)

    def step(self, n_samples: int) -> None:
        """x_k <- optimizer(x_k, g_k); push, and fetch if it is time to."""
        self.updater.step(self.replica.collect(), n_samples)
        self.replica.zero_grad()
        self.n += n_samples
        self.push(self.transport, self.replica.x, self.base)
        if self.updater.version % self.n_fetch == 0:
            self.fetch(self.transport, self.replica.x, self.base)

    def serve(self) -> None:
        """Serve until all workers have taken their steps of the epoch, and said on how many samples."""
        self.updater.count(serve(self.transport, self.replica.x, self.apply))

    def finish(self) -> None:
        """Worker: say goodbye. All: take the server's x."""
        if self.transport.rank != SERVER:
            self.transport.isend(None, SERVER, "goodbye", n=self.n)
            self.n = 0
        broadcast(self.replica.x, self.transport, "x of the epoch")
        self.base.copy_(self.replica.x)
