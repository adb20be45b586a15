"""What a strategy is: what happens between `backward()` and the next `forward()`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from records.events import clock
from strategies.replica import Replica
from transports.base import Transport

OptimizerFactory = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


class Strategy(ABC):
    """One rank's part in an algorithm. A training loop is the same for all of them:

        strategy.start(replica, transport)
        for x, y in shard:
            loss(model(x), y).backward()
            strategy.step(len(x))
        strategy.finish()

    and on a server rank `strategy.serve()` stands in the place of the `for` loop.

    `optimizer` makes any torch optimizer from a list of one parameter, the flat vector x; it runs where the algorithm
    runs it. `clip_norm` bounds the norm of the gradient that the optimizer is given (0: no bound). `schedule`, if
    given, maps the samples processed so far by all workers to a factor of the learning rate.
    """

    min_ranks = 1
    max_ranks: int | None = None
    replicas_agree = True  # whether all replicas are bit-identical after every step
    own_pace = False  # whether each worker goes at its own, so that the result depends on who comes when
    workers_may_die = False  # whether the server holds all that matters, so that a run can lose workers
    goal: int | None = None  # where workers have their own pace: the samples with which the epoch ends, if known
    replay: Iterator[int] | None = None  # on a server: the order in which messages are to be taken, as in `arrivals`
    arrivals: Sequence[int] = ()  # on a server: whose messages came, in their order, where that decides the result
    deaths: Sequence[dict[str, Any]] = ()  # on a server: of its workers, where it goes on without them
    takes: tuple[str, ...] = ()  # options of the run that are attributes of the strategy
    # Only what is not ours sets these: its name, what carries its messages, where its count of bytes comes from.
    name = ""
    carrier = ""
    one_for_all = False  # one process that computes for all workers
    bytes_are = "counted"

    def __init__(
        self, optimizer: OptimizerFactory, clip_norm: float = 0.0, schedule: Callable[[float], float] | None = None
    ) -> None:
        self._new_optimizer = optimizer
        self.clip_norm = clip_norm
        self.schedule = schedule
        self.steps = 0  # that this rank has served
        self.on_served: Callable[[int], None] | None = None  # told of each
        self.samples = 0  # that all workers' gradients were computed on, as far as this rank has applied them
        self.processed = 0.0  # these, and those that were computed on in vain: what the schedule goes by

    @classmethod
    def roles(cls, world_size: int) -> list[str]:
        """Return each rank's role: "worker" or "server"."""
        return ["worker"] * world_size

    @classmethod
    def remark(cls, n_gpus: int) -> str:
        """Return what a user must know of this run, in one line; most have nothing to say."""
        return ""

    def wrap(self, model: nn.Module, transport: Transport, n_gpus: int) -> nn.Module:
        """Start with a replica of `model`; return the module that the training loop is to call."""
        self.start(Replica(model, transport), transport)
        return model

    def start(self, replica: Replica, transport: Transport) -> None:
        """Give every rank the parameters and buffers of rank 0. Called once, by all ranks."""
        self.replica = replica
        self.transport = transport
        self.parameter = torch.nn.Parameter(replica.x)
        self.parameter.grad = replica.g
        self.make_optimizer([self.parameter])
        self.prepare()
        self.share()

    def prepare(self) -> None:  # noqa: B027 - there may be nothing
        """Have what else the algorithm keeps. Called by `start`, by all ranks."""

    def share(self) -> None:
        """Give every rank the parameters and buffers of rank 0. Called by `start`, by all ranks."""
        replica, transport = self.replica, self.transport
        for vector, tag in ((replica.x, "initial parameters"), (replica.b, "initial buffers")):
            if transport.rank == 0:
                for work in [transport.isend(vector, peer, tag) for peer in transport.peers]:
                    work.wait()
            else:
                transport.recv(0, tag).copy_to(vector)

    def make_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Have the optimizer for `parameters`."""
        self.optimizer = self._new_optimizer(parameters)
        self.lr = self.optimizer.param_groups[0]["lr"]

    def loss_weight(self, n_samples: int, n_of_all: int) -> float:
        """Return what the loop multiplies the mean loss over `n_samples` by, of `n_of_all` in the global batch."""
        return 1.0

    def piece(self, last: bool) -> AbstractContextManager[None]:
        """Surround the forward and backward pass of one of the pieces that a step's gradient is computed in."""
        return nullcontext()

    @abstractmethod
    def step(self, n_samples: int) -> None:
        """Turn this worker's mean gradient over `n_samples` into new parameters, and zero the gradient.

        Raises PeerLost, WaitTimeout.
        """

    def serve(self) -> None:
        """On a server rank: answer the workers until all of them have finished."""
        raise RuntimeError(f"{type(self).__name__} has no server rank")

    def finish(self) -> None:  # noqa: B027 - there may be nothing to do
        """End an epoch, or the training: send what is unsent, average the buffers, say goodbye. All ranks call it.

        Afterwards `model()` is good (on the server rank, where there is one), and training may go on.
        """

    def model(self) -> torch.Tensor:
        """Return the parameters [n] that the algorithm calls its own: what is to be evaluated."""
        return self.replica.x

    def parameters(self) -> torch.Tensor:
        """Return this rank's parameters [n]; after a synchronous step they are the same on every rank."""
        return self.replica.x

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank needs to go on later."""
        return {
            "x": self.replica.x.clone(),
            "b": self.replica.b.clone(),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
            "processed": self.processed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same model and rank; called after `start`."""
        self.replica.x.copy_(state["x"])
        self.replica.b.copy_(state["b"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples, self.processed = state["samples"], state["processed"]

    def close(self) -> None:  # noqa: B027 - there may be nothing to do
        """Give back what `wrap` took."""

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Yield which of the steps `start` to `stop` - 1, counted over all epochs, this worker is to take."""
        yield from range(start, stop)

    def applied(self, worker: int, version_read: int, version: int) -> None:
        """Record that a gradient of `worker`, computed on one version of x, was applied to another."""
        now = clock()
        self.transport.recorder.add("update", now, now, peer=worker, version_read=version_read, version_applied=version)

    def tell(self, value: Any, tag: str) -> None:
        """Send to all other ranks that take part."""
        for peer in self.transport.peers:
            self.transport.isend(value, peer, tag)

    def drop(self, worker: int, version_read: int, version: int) -> None:
        """Record that a gradient of `worker`, computed on one version of x, came too late for another."""
        now = clock()
        self.transport.recorder.add(
            "communicate", now, now, "drop", worker, version_read=version_read, version_applied=version
        )

    def served(self) -> None:
        """On a server rank: note that one more step has been taken."""
        self.steps += 1
        self.transport.recorder.step = self.steps
        if self.on_served:
            self.on_served(self.steps)

    def update(self, n_samples: int, processed: float | None = None) -> None:
        """Take one optimizer step on x with the gradient, the mean over `n_samples` of all workers.

        `processed`: of how many that they have computed on for it, by default as many.
        """
        processed = n_samples if processed is None else processed
        groups = self.optimizer.param_groups
        with self.transport.recorder.phase("update"):
            if self.schedule:
                for group in groups:
                    group["lr"] = self.lr * self.schedule(self.processed + processed / 2)
            if self.clip_norm:
                torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], self.clip_norm)
            self.optimizer.step()
        self.samples += n_samples
        self.processed += processed
