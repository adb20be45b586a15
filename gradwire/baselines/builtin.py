"""The base of PyTorch's own ways, behind the interface of a strategy so that one loop runs them all.

They work on a module, `original`, where the strategies work on a Replica.
"""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from typing_extensions import override

from gradwire.core.strategy.codes import CodecFactory
from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.settings import DEFAULT, RunSettings
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.tensors import (
    bytes_of,
    copy_bytes_into,
    copy_into,
    float_buffers,
    integers_of,
    layout_of,
    other_tensors,
    trained,
)
from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.base import Transport


@dataclass(kw_only=True)
class Builtin(Strategy):
    """A way of torch's own."""

    transport_name: ClassVar[str] = ""  # what carries its messages
    bytes_source: ClassVar[str] = "counted"  # where its count of bytes comes from
    single_process: ClassVar[bool] = False  # one process that computes for all workers
    shards_x: ClassVar[bool] = False  # no rank has all of x while it trains

    def make_replica(self, model: nn.Module, transport: Transport, n_gpus: int) -> Replica:
        """Return the model, left as it is."""
        return Original(self, model, n_gpus)

    @abstractmethod
    def parallel(self, model: nn.Module, n_gpus: int) -> nn.Module:
        """Return torch's module around `model`."""

    def loss_weight(self, n: int, n_of_all: int) -> float:
        """Return the factor of the mean loss over `n`, of `n_of_all` in the global batch."""
        return 1.0

    def sum_of_all(self, n: int) -> int:
        """Return the sum of the `n` of all ranks."""
        return n

    def begin_microbatch(self, last: bool) -> None:
        """Prepare for one of the pieces in which a step's gradient is computed; most need not."""

    def unreduced(self) -> AbstractContextManager[None]:
        """In the block, the parameters of torch's module have the gradients of the pieces before the last."""
        return nullcontext()

    def close(self) -> None:
        """Release what `parallel` has taken."""

    def model(self) -> torch.Tensor:
        """Return the parameters [n]: those of any rank are the model."""
        return parameters_to_vector(trained(self.original)).detach()

    def state_dict(self) -> dict[str, Any]:
        """As the strategies': parameters x, buffers b and counts as vectors."""
        buffers = [b.reshape(-1) for b in float_buffers(self.original)]
        b = torch.cat(buffers) if buffers else torch.empty(0)
        others = {"others": bytes_of(other_tensors(self.original))}
        return {"x": self.model(), "b": b, "counts": integers_of(self.original), **others, **self.updater.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        copy_into(trained(self.original), state["x"])
        copy_into(float_buffers(self.original), state["b"])
        copy_bytes_into(other_tensors(self.original), state["others"])
        self.updater.load_state_dict(state)

    def start(
        self,
        replica: Replica,
        transport: Transport,
        optimizer: OptimizerFactory,
        settings: RunSettings = DEFAULT,
        state: dict[str, Any] | None = None,
        codec: CodecFactory | None = None,
    ) -> None:
        """Put the module of `replica`, an Original, into torch's; torch needs no more of `Strategy.start`."""
        assert isinstance(replica, Original)
        self.transport = transport
        self.original = model = replica.model
        self._kept = {}
        replica.wrapped = wrapped = self.parallel(model, replica.n_gpus)
        clip_norm, schedule = settings.clip_norm, settings.schedule
        self.updater = Updater(trained(wrapped), optimizer, clip_norm, schedule, transport.recorder, layout_of(model))
        if state is not None:
            self.load_state_dict(state)


class Original(Replica):
    """A model that is left as it is, for a built-in way to work on."""

    def __init__(self, way: Builtin, model: nn.Module, n_gpus: int) -> None:
        self.model = self.wrapped = model
        self.n_gpus = n_gpus
        self.interruption = nullcontext
        self._way, self._weight = way, 1.0
        self.is_watched = way.shards_x

    @property
    def has_own_gradient(self) -> bool:
        """See Replica: torch sums it in the backward pass."""
        return False

    @property
    def module(self) -> nn.Module:
        """See Replica: torch's module around the model."""
        return self.wrapped

    @override
    def begin_microbatch(self, n: int, n_of_all: int, is_last: bool) -> None:
        self._weight = self._way.loss_weight(n, n_of_all)
        self._way.begin_microbatch(is_last)

    @override
    def rescale(self, n: int, expected: int) -> None:
        before, self._weight = self._weight, self._way.loss_weight(n, self._way.sum_of_all(n))
        with self._way.unreduced():
            self._scale(expected / n * self._weight / before)

    @override
    def backward(self, loss: torch.Tensor) -> None:
        (loss if self._weight == 1 else loss * self._weight).backward()

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors without buffers: the ranks share those before a step, and not after the last one."""
        return [*trained(self.model)]

    @override
    def close(self) -> None:
        self._way.close()
