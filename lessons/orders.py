"""Lab 11, to be filled in: every order. The text of the lab is in 11_orders.ipynb.

python -m lessons.check orders lessons/orders.py

python train.py --strategy lessons.orders:Mine --n_gpus 4 --s 1      # when it is right: trains by it
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire.core.transports.base import ANY, Transport
from lessons import not_waiting
from lessons.labs.orders import decisions, noting
from strategies import Cost, Traffic

SERVER = 0


def holds(happened: list[tuple[str, int]], s: int) -> bool:
    """Return whether all that a server has done so far is right with the bound s.

    What has happened, in order: ("sent", k), x of then, to worker k; ("applied", k) or ("dropped", k), its gradient.
    """
    raise NotImplementedError("holds: how late was each gradient, and which of the two had to happen with it?")


def serve(
    transport: Transport, x: torch.Tensor, update: Callable[..., None], note: Callable[[str, int], None], s: int
) -> None:
    """Rank 0: apply each gradient that is at most s versions late, drop the others, and `note` what happens.

    A worker sends "fetch", is sent "parameters", sends the "gradient" that it computes on them, and so on; in the end
    it says "goodbye". `update(g)` makes one step of x [P], in place: the next version. A gradient is as late as there
    were versions since its worker was sent x.
    """
    version, read, present = 0, 0, len(transport.peers)
    while present:
        with transport.recv(ANY, ("fetch", "gradient", "goodbye")) as message:
            k = message.src
            if message.tag == "fetch":
                read = version
                transport.isend(x.clone(), k, "parameters")
                note("sent", k)
            elif message.tag == "goodbye":
                present -= 1
            elif version - read <= s:
                update(message.vector)
                version += 1
                note("applied", k)
            else:
                note("dropped", k)


@dataclass(kw_only=True)
class Mine(not_waiting.Mine):
    """Rank 0 serves by the function above; workers fetch x before each step."""

    s: int = 0
    """How many versions late a gradient may be."""

    serve_all = staticmethod(serve)  # type: ignore[assignment]

    def cost(self, kind: str | None = None) -> Cost:
        """A fetch and a gradient of each worker, and x to each."""
        return Cost(worker=Traffic("2", "P"), server=Traffic("N - 1", "(N - 1) P"))

    def stalest(self, workers: int) -> int | None:
        """The bound."""
        return self.s

    def begin_step(self, n_samples: int) -> None:
        """Fetch x."""
        self.transport.isend(None, SERVER, "fetch")
        self.transport.recv(SERVER, "parameters").copy_to(self.replica.x)

    def step(self, n_samples: int) -> None:
        """Send g."""
        self.transport.isend(self.replica.collect(), SERVER, "gradient").wait()
        self.samples += n_samples
        self.replica.zero_grad()

    def serve(self) -> None:
        """Apply or drop the gradients of an epoch; then record which."""
        self.happened, now = list[tuple[str, int]](), self.transport.now()
        self.serve_all(self.transport, self.replica.x, lambda g: self.updater.step(g, 0), noting(self.happened), self.s)
        for what, k, read, version in decisions(self.happened):
            phase, op = ("update", "") if what == "applied" else ("communicate", "drop")
            self.transport.recorder.add(phase, now, now, op, k, version_read=read, version_applied=version)
