"""Lab 4, to be filled in: a server that does not wait, and the rate it can bear. The text is in 4_not_waiting.ipynb.

python -m lessons.check not_waiting lessons/not_waiting.py

python train.py --strategy lessons.not_waiting:Mine --n_gpus 5 --lr 0.1 --batch_size 8      # when it is right
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire.core.transports.base import ANY, Transport  # noqa: F401 - ANY is for your `serve`
from lessons import param_server
from strategies import Traits
from strategies.collectives import broadcast

SERVER = 0


def serve(
    transport: Transport, x: torch.Tensor, update: Callable[[torch.Tensor], None], s: int | None = None
) -> list[int]:
    """Rank 0: apply each gradient when it comes, until all workers have said goodbye; return the staleness of each.

    A worker sends a "gradient", computed on the "parameters" it was sent last, and waits for the next ones; after its
    last step it says "goodbye". At the start all have x, version 0. `update(g)` makes one step of x [P], in place: the
    next version. The staleness of a gradient is the version that it is applied to, less the version that its worker
    computed it on.

    With a bound s, a worker gets its answer, the x of that moment, only when it is at most s of its own steps ahead of
    the slowest of those that have not said goodbye. None: at once.
    """
    raise NotImplementedError(
        "serve: take what comes from anybody, apply it, answer who sent it; what must you know of each worker for that?"
    )


def descend(rate: float, curvature: float, tau: int, steps: int) -> list[float]:
    """Return x_0 = 1, x_1, ..., x_steps of descent on curvature x^2 / 2, whose gradients are tau steps late.

    x_{t+1} = x_t - rate * (gradient at x_{t - tau}); before x_0 there was x_0.
    """
    raise NotImplementedError("descend: which x was the gradient that is applied to x_t computed on?")


def largest_rate(curvature: float, tau: int) -> float:
    """Return, to 1 %, the largest rate with which `descend` goes to 0."""
    raise NotImplementedError(
        "largest_rate: try rates with descend; between which two does it change from 0 to endless?"
    )


@dataclass(kw_only=True)
class Mine(param_server.Mine):
    """Rank 0 serves by the function above, all others work."""

    s: int | None = None
    """How many of its own steps a worker may be ahead of the slowest. Default: any number."""

    traits = Traits(asynchronous=True, ranks=(2, None), defaults={"momentum": 0.0})  # late gradients act like momentum
    serve_all = staticmethod(serve)

    def setup(self) -> None:
        """Count the samples of an epoch."""
        self.samples = 0

    def step(self, n_samples: int) -> None:
        """Send g; x <- the server's."""
        sent = self.transport.isend(self.replica.collect(), SERVER, "gradient")
        self.transport.recv(SERVER, "parameters").copy_to(self.replica.x)
        sent.wait()
        self.samples += n_samples
        self.replica.zero_grad()

    def serve(self) -> None:
        """Apply the gradients of an epoch. How many samples they are of, the workers say at its end."""
        self.serve_all(self.transport, self.replica.x, lambda g: self.updater.step(g, 0), self.s)

    def finish(self) -> None:
        """Worker: say goodbye. All begin the next epoch with the server's x."""
        if self.transport.rank == SERVER:
            for k in self.transport.peers:
                n = self.transport.recv(k, "samples").n
                self.updater.samples += n
                self.updater.processed += n
        else:
            self.transport.isend(None, SERVER, "goodbye")
            self.transport.isend(None, SERVER, "samples", n=self.samples)
            self.samples = 0
        broadcast(self.replica.x, self.transport, "parameters at the end")
