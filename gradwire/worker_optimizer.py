"""A strategy behind the two calls of an optimizer, for your own training loop.

    def rank(transport):
        model = make_model()
        optimizer = WorkerOptimizer(model, transport, AsyncParamServer(), partial(torch.optim.SGD, lr=0.1))
        if optimizer.is_server:
            optimizer.serve()
        else:
            for x, y in batches:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step(len(x))
            optimizer.finish()

    launch(rank, 4)

The workers say when it is over: each calls `finish` when it has taken its steps, and `serve` returns when all have.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.updater import Schedule
from gradwire.core.transports.base import Transport
from gradwire.python_errors import in_python
from gradwire.random_state import random_state, set_random_state

if TYPE_CHECKING:
    from gradwire.compression import Codec


class WorkerOptimizer(torch.optim.Optimizer):
    """Steps of a worker: `zero_grad`, `step` and `finish`; on a server rank `serve` stands for all of them.

    Its parameter groups are those of the optimizer that this rank's updates are made by, with the trained parameters of
    the model: torch's schedulers work on them, the same one on all ranks. Where a server updates, or where `schedule`
    sets the learning rate, `param_groups` raises UsageError: a change of it would change nothing.

    `optimizer` is called with a list of parameters. One that treats all of them alike, element by element, gets one
    vector, which is fastest. Any other (it makes groups, asks for shapes, is torch's Muon or Adafactor) gets tensors
    with the shapes of the model's; in `by_name(function)` the function gets pairs of a name and such a tensor.

    All ranks make it, with a model of the same layout on the transport's device. As in DistributedDataParallel, all get
    the whole state of rank 0's module. `optimizer`, `clip_norm`, `schedule`: see `Updater`. `codec`: what the gradients
    are sent by; `scope` and `momentum`: see `Setting`; with a codec that carries the momentum, the optimizer runs
    without. `seed`: of what the codec and the strategy draw. `state`: what `state_dict` returned, to continue from
    there. Raises UsageError, PeerLost, WaitTimeout.
    """

    def __init__(
        self,
        model: nn.Module,
        transport: Transport,
        strategy: Strategy,
        optimizer: OptimizerFactory,
        *,
        codec: "Codec | None" = None,
        scope: str = "tensor",
        momentum: float = 0.0,
        seed: int = 0,
        clip_norm: float = 0.0,
        schedule: Schedule | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        with in_python({"codec_scope": "scope", "optimizer_options": "optimizer"}):
            _check(transport, strategy, optimizer, codec, scope, momentum)
        self.strategy = dataclasses.replace(strategy)  # of this rank's own, where ranks share a process
        roles = self.strategy.roles(transport.world_size)
        self.is_server = roles[transport.rank] == "server"
        self._recorder = transport.recorder
        self._recorder.epoch = state["epoch"] if state else max(1, self._recorder.epoch)
        make = None
        if codec is not None:
            from gradwire.compression import Setting
            from gradwire.compression.coding import codec_factory

            make = codec_factory(codec, Setting(scope, seed, workers=roles.count("worker"), momentum=momentum))
        self.replica = Replica(model, transport)
        with in_python({}):
            self.strategy.start(self.replica, transport, optimizer, RunSettings(clip_norm, schedule, seed), state, make)
        if state:
            set_random_state(state, transport.device)
        self._unchangeable, self._complete = "", False
        updater, groups = self.strategy.updater, []
        for group in updater.optimizer.param_groups:
            parameters = self.replica.parameters
            if not updater.is_flat:
                of_model = dict(zip(updater.parameters, parameters, strict=True))
                parameters = [of_model[p] for p in group["params"]]
            groups.append(_options(group) | {"params": parameters})
        super().__init__(groups, updater.optimizer.defaults)
        self._complete = True
        if self.strategy.traits.server_updates:
            self._unchangeable = (
                f"with {strategy.name} the server has the learning rate; give WorkerOptimizer schedule="
            )
        elif schedule is not None:
            self._unchangeable = "schedule= sets the learning rate; give it or a scheduler, not both"

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups, as torch's schedulers want it. Raises UsageError where a change would change nothing."""
        if self._unchangeable:
            raise UsageError(f"param_groups: {self._unchangeable}")
        return self._groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._groups = groups

    def __repr__(self) -> str:
        return f"WorkerOptimizer({self.strategy})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise UsageError for a group more than `optimizer` has made."""
        if self._complete:
            raise UsageError("add_param_group: it comes too late; let optimizer= make all groups")
        super().add_param_group(param_group)

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 1 on; of a worker that was started again, the server's."""
        return self._recorder.epoch

    # Worker

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self.replica.model.zero_grad(set_to_none)

    def step(self, n_samples: int = 1) -> None:  # type: ignore[override]
        """Turn the gradients into new parameters.

        They are those of the mean loss over `n_samples`, by which a mean over workers is weighted; `schedule` counts
        them. Raises PeerLost, WaitTimeout.
        """
        self._check_role(False, "step")
        self._pass_options_on()
        self.strategy.step(n_samples)

    def finish(self) -> None:
        """End an epoch, or the training: all workers call it, and a server's `serve` counts it as one epoch.

        Afterwards the buffers are averaged, and training may continue. Where replicas agree, the model is the
        strategy's; where they need not, as with dgs and easgd, `strategy.model()` has its parameters [n]. Raises
        PeerLost, WaitTimeout.
        """
        self._check_role(False, "finish")
        self._end_epoch()

    # Server

    def serve(self, epochs: int = 1) -> None:
        """Answer the workers until all have called `finish` `epochs` times. Raises PeerLost, WaitTimeout."""
        self._check_role(True, "serve")
        for _ in range(epochs):
            self.strategy.serve()
            self._end_epoch()

    # Both

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank needs to continue later, but for a scheduler, which has a state of its own.

        Also the state of torch's random numbers, which the rank continues with: those of dropout.
        """
        self._pass_options_on()
        return {**self.strategy.state_dict(), "epoch": self.epoch, **random_state(self.strategy.transport.device)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise UsageError: all ranks begin with their states, by `state`."""
        raise UsageError("load_state_dict: give what state_dict returned as WorkerOptimizer(..., state=...)")

    def _pass_options_on(self) -> None:
        """Give the optimizer that makes the updates the options that a scheduler may have changed."""
        if not self._unchangeable:
            for group, made in zip(self._groups, self.strategy.updater.optimizer.param_groups, strict=True):
                made.update(_options(group))

    def _end_epoch(self) -> None:
        self.strategy.finish()
        self._recorder.epoch += 1

    def _check_role(self, server: bool, call: str) -> None:
        if self.is_server and not server:
            raise UsageError(f"{call}() on a rank that serves; where optimizer.is_server, call optimizer.serve()")
        if server and not self.is_server:
            raise UsageError(f"{call}() on a worker; call it where optimizer.is_server")


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _check(
    transport: Transport,
    strategy: Strategy,
    optimizer: OptimizerFactory,
    codec: "Codec | None",
    scope: str,
    momentum: float,
) -> None:
    """Check the number of ranks, and the options of the strategy and of the codec. Raises UsageError."""
    n, (least, most) = transport.world_size, strategy.traits.ranks
    if n < least:
        raise UsageError(f"{n} rank(s): {strategy.name} needs at least {least}; launch more")
    if most is not None and n > most:
        raise UsageError(f"{n} ranks: {strategy.name} is at most {most}; launch fewer")
    workers = strategy.roles(n).count("worker")
    held_back = transport.link is not None
    check_strategy(strategy, RunSize(n, workers, sys.maxsize, held_back=held_back, optimizer=optimizer))
    if momentum and not (codec and codec.carries_momentum):
        raise UsageError(f"--momentum {momentum}: no codec carries it; give it to the optimizer")
    if scope not in ("tensor", "vector"):
        raise UsageError(f"--scope {scope!r}: must be 'tensor' or 'vector'")
    if codec is not None:
        from gradwire.compression.coding import check_codec

        check_codec(codec, strategy, scope, optimizer)
