"""Lab 1, to be filled in: a synchronous parameter server. The text of the lab is in 1_parameter_server.ipynb.

python -m lessons.check param_server lessons/param_server.py

python train.py --strategy lessons.param_server:Mine --n_gpus 4      # when it is right: trains by it
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire.core.transports.base import Transport
from strategies import Cost, Strategy, Traffic, Traits

SERVER = 0


def serve(transport: Transport, x: torch.Tensor, update: Callable[[torch.Tensor], None]) -> None:
    """Rank 0, one step: take a gradient of every worker, update x [P] once with their mean, send x to all.

    `update(g)` is the optimizer's step: x <- optimizer(x, g), in place.
    """
    raise NotImplementedError("serve: receive what, from whom? Update how often, and with what? Who gets the new x?")


def work(transport: Transport, x: torch.Tensor, g: torch.Tensor) -> None:
    """A worker, one step: send the gradient g [P] to the server; replace x [P], in place, by the server's new one."""
    raise NotImplementedError("work: what does the server need of you, and where is its answer to be in the end?")


@dataclass(kw_only=True)
class Mine(Strategy):
    """Rank 0 serves by the functions above, all others work."""

    traits = Traits(ranks=(2, None))
    serve_once = staticmethod(serve)
    work = staticmethod(work)

    def cost(self, kind: str | None = None) -> Cost:
        """A gradient from each worker, and x to each."""
        return Cost(worker=Traffic("1", "P"), server=Traffic("N - 1", "(N - 1) P"))

    def roles(self, world_size: int) -> list[str]:
        """Rank 0 serves, the others work."""
        return ["server"] + ["worker"] * (world_size - 1)

    def step(self, n_samples: int) -> None:
        """Tell the server that a step begins, and take part in it."""
        if self.transport.rank == 1:  # all workers keep step, so one speaks for all
            self.transport.isend(None, SERVER, "a step")
        self.work(self.transport, self.replica.x, self.replica.collect())
        self.replica.zero_grad()

    def serve(self) -> None:
        """Serve step after step until the epoch is over."""
        n = self.transport.world_size - 1

        def update(g: torch.Tensor) -> None:
            self.updater.step(g, n)

        while self.transport.recv(1, ("a step", "goodbye")).tag == "a step":
            self.serve_once(self.transport, self.replica.x, update)

    def finish(self) -> None:
        """Rank 1: say that the epoch is over."""
        if self.transport.rank == 1:
            self.transport.isend(None, SERVER, "goodbye")
