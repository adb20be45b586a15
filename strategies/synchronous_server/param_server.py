"""Synchronous parameter server: rank 0 keeps the parameters x, N - 1 workers compute on one shard of each batch.

In every step each worker k sends (n_k, g_k), its mean gradient over n_k samples, to the server. The server waits for
all of them, takes one optimizer step

    x <- optimizer(x, sum of n_k g_k / sum of n_k)

and sends x to all workers. (Li et al., 2014, Scaling distributed machine learning with the parameter server, OSDI.
There several servers share x: see `sharded_param_server`.)

All messages of a step pass the server's card, (N - 1) P bytes in and then as many out: that is the wall. With a codec,
g_k is sent as its code, and the server takes what it decodes for g_k; x is sent as it is.
"""

from dataclasses import dataclass, replace

from gradwire.core.strategy.served import Served
from gradwire.core.strategy.traits import Cost, Traffic
from gradwire.core.strategy.workers import SERVER


@dataclass(kw_only=True)
class ParamServer(Served):
    """Workers send gradients to one server, which takes one step with their mean and sends the parameters to all."""

    def cost(self, kind: str | None = None) -> Cost:
        """All gradients pass the server's card, then all x; in order, one gradient comes in while x goes to others."""
        fair, in_order = ("(N - 1) (G + P)", "G + (N - 1) P") if kind else ("2 (N - 1) P", "N P")
        return replace(super().cost(kind), path=Traffic("2", fair), in_order=Traffic("2", in_order))

    # Worker k

    def step(self, n_samples: int) -> None:
        """Send (n_k, g_k); x_k <- the server's new x, which is read where it is, until the next step."""
        gradient = self.send_gradient(n_samples)
        self.replica.adopt(self.transport.recv(SERVER, "parameters"))
        gradient.wait()
        self.replica.zero_grad()

    # Server

    def serve(self) -> None:
        """Take one step after the other with a gradient of each worker, until all have said goodbye."""
        for gradients in self.workers.rounds():
            self.apply(gradients)  # x <- optimizer(x, sum n_k g_k / sum n_k)
            self.workers.send_in_place(self.replica.x)
