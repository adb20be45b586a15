"""Steps of a strategy without training: the two passes are only the time that they take.

On torch's meta device they need no memory either: vectors have a length and no elements, so a model may be of any
size. Nothing that a strategy decides may depend on the value of an element.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from gradwire.compression.wing import AFTER_WARM_UP
from gradwire.core.strategy.layout import Layout
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.traits import Choice, choice_of
from gradwire.core.transports.base import Transport
from gradwire.diagnosis.memory import Memory
from gradwire.diagnosis.memory_use import MemoryUse
from gradwire.options import Options
from gradwire.sharding.block_observer import BlockObserver, bind, on_blocks, pop_gradients, unbind
from gradwire.sharding.blocks import Block, blocks_of, cut


@dataclass(frozen=True)
class Sizes:
    """The lengths of a model's vectors: parameters x, and floating-point buffers b."""

    parameters: int
    buffers: int = 0
    tensors: Layout | None = None  # of the parameters, where they are known
    shares: tuple[float, ...] = (1.0,)  # of each tensor in the operations of a pass

    @property
    def layout(self) -> Layout:
        """The tensors of the parameters; one vector where no others are known."""
        return self.tensors or Layout(("x",), ((self.parameters,),))


@dataclass(frozen=True)
class StepsJob:
    """What all ranks get; `phases` are the seconds of the phases of a step, unless the launcher knows them."""

    options: Options
    sizes: Sizes
    samples: int  # of a worker in a step
    steps: int
    phases: dict[str, float] | None = None
    passes: Callable[[int], tuple[nn.Module, torch.Tensor, torch.Tensor]] | None = None
    """Return the network of a rank, its inputs and their classes, where the passes are computed."""


@dataclass(frozen=True)
class Steps:
    """The result of one rank: when its steps began, each of a worker's ended, and all; the bytes sent meanwhile."""

    begun: float
    ends: tuple[float, ...]
    ended: float
    messages: int
    nbytes: int
    optimizer_bytes: int  # of the optimizer's state
    memory: MemoryUse | None = None  # if it was counted
    choice: Choice | None = None  # between algorithms, if it was made


class HollowReplica(Replica):
    """Tensors whose gradients need no collecting: they are the parts of one vector."""

    def __init__(self, sizes: Sizes, transport: Transport, dtype: torch.dtype) -> None:
        super().__init__(Hollow(sizes, transport.device, dtype), transport)
        self.layout = sizes.layout
        self._blocks: Sequence[Block] = ()
        self._copies: list[torch.Tensor] = []

    @override
    def collect_one(self, i: int) -> None:
        self.parameters[0].grad = self._gradients[0]

    @override
    def free_x(self) -> None:
        super().free_x()
        self.point_at(self.x)

    @override
    def on_gradient(self, call: Callable[[int], None]) -> None:
        self._on_gradient, self.is_watched = call, True

    def tell_of(self, blocks: Sequence[Block], observer: BlockObserver) -> None:
        """Call `told` for the passes of these blocks."""
        self._blocks, self._observer = blocks, observer

    def forward(self, autocast: bool) -> None:
        """Let the time of a forward pass pass, block by block; `autocast` makes copies of parameters in bf16."""
        if self._blocks:
            self._observer.begin_forward()
        for i, n in enumerate(self.layout.sizes):
            if self._blocks:
                self._observer.enter(self._blocks[i])
            if autocast:
                self._copies.append(torch.empty(n, dtype=torch.bfloat16, device=self.x.device))
            if self._blocks:
                self._observer.leave(self._blocks[i])
        if self._blocks:
            self._observer.end_forward()

    def pass_back(self) -> None:
        """Let the time of a backward pass pass: all tensors have a gradient, the last one first."""
        for i in reversed(range(len(self.layout.names))):
            if self._blocks:
                self._observer.enter_backward(self._blocks[i])
            with self._recorder.holding("gradients"):
                gradient = torch.empty(self.layout.sizes[i], dtype=self.x.dtype, device=self.x.device)
            if self.is_watched:
                self.call_on_gradient(i)
            del gradient  # it is where the strategy needs it
            self._copies[i:] = []


@cut.register
def _tensors(replica: HollowReplica, names: str) -> list[Block]:
    """Return the blocks of a replica without modules: each tensor is one."""
    if names:
        return blocks_of(replica.model, replica.layout, names)
    pairs = zip(replica.layout.names, replica.layout.slices, strict=True)
    return [Block(name, nn.Identity(), range(i, i + 1), part) for i, (name, part) in enumerate(pairs)]


@bind.register
@pop_gradients.register
def _leave(replica: HollowReplica, block: Block, vector: torch.Tensor) -> None:
    """Do nothing: no tensor of a block is kept."""


@unbind.register
def _leave_all(replica: HollowReplica, block: Block) -> None:
    """Do nothing."""


@on_blocks.register
def _on_blocks(replica: HollowReplica, blocks: Sequence[Block], observer: BlockObserver) -> None:
    replica.tell_of(blocks, observer)


class Hollow(nn.Module):
    """A model reduced to what a strategy sees: vectors of these lengths."""

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(sizes.parameters, device=device, dtype=dtype))
        self.register_buffer("b", torch.zeros(sizes.buffers, device=device, dtype=dtype))


def take_steps(transport: Transport, report: Callable[[str], None], job: StepsJob) -> Steps:
    """Run one rank for some steps; both passes only let virtual time pass, unless the job has `passes`.

    `report` is called when they have "begun" and when they have "ended".
    """
    with Memory(transport.recorder) if job.options.memory else nullcontext() as memory:
        return _take_steps(transport, report, job, memory)


def _take_steps(transport: Transport, report: Callable[[str], None], job: StepsJob, memory: Memory | None) -> Steps:
    options, recorder = job.options, transport.recorder
    if job.phases is not None:
        phases = job.phases
        recorder.time_passes = lambda name, part: transport.sleep(phases.get(name, 0.0) * part)
    strategy = dataclasses.replace(options.strategy)
    roles = options.roles
    if job.passes:
        network, x, y = job.passes(transport.rank)
        replica = Replica(network, transport)
    else:
        replica = HollowReplica(job.sizes, transport, options.torch_dtype)
    strategy.start(replica, transport, options.make_optimizer(), options.settings(), **options.start_arguments())
    recorder.shares = job.sizes.shares
    strategy.updater.until = job.steps * job.samples * roles.count("worker")
    recorder.epoch = AFTER_WARM_UP
    _meet(transport)
    report("begun")
    begun, ends = transport.now(), []
    messages, nbytes = transport.messages_sent.total(), transport.bytes_sent.total()
    if roles[transport.rank] == "server":
        if memory:
            memory.begin_training()
        strategy.serve()
    else:
        for i in strategy.steps_of_epoch(0, job.steps):
            recorder.step = i
            if memory:
                memory.begin_step()
            strategy.begin_step(job.samples)
            with recorder.phase("forward"):
                if isinstance(replica, HollowReplica):
                    replica.forward(options.amp != "none")
                else:
                    loss = F.cross_entropy(replica.module(x), y)
            if memory:
                memory.begin_training()  # sharded tensors are sharded from here on
            with recorder.phase("backward"):
                if isinstance(replica, HollowReplica):
                    replica.pass_back()
                else:
                    replica.backward(loss)
            strategy.step(job.samples)
            ends.append(transport.now())
    ended = transport.now()
    report("ended")
    messages, nbytes = transport.messages_sent.total() - messages, transport.bytes_sent.total() - nbytes
    use = memory.use() if memory else None
    if not strategy.traits.asynchronous and "server" not in roles:
        transport.barrier()  # no card has passed what follows the steps of the last
    strategy.finish()
    return Steps(begun, tuple(ends), ended, messages, nbytes, strategy.state_bytes, use, choice_of(strategy))


def _meet(transport: Transport) -> None:
    """Return on all ranks at the same virtual time where that is possible, not when the last rank has every message."""
    transport.barrier()
    t0 = transport.now()
    transport.barrier()
    if transport.rank == 0:
        start = transport.now() + 2 * (transport.now() - t0)
        for peer in transport.peers:
            transport.isend(start, peer, "start")
    else:
        start = transport.recv(0, "start").object
    transport.sleep(max(0.0, start - transport.now()))


def seconds_of_a_step(results: list[Steps], roles: list[str], period: int = 1) -> float:
    """Return the seconds in which every worker takes a step, where each `period` of steps is like the last.

    Of many steps, those between the first half and the last of each worker count: first a worker has nothing to wait
    for, and at the end it may have to wait for all. Of few steps, all.
    """
    workers = [result for result, role in zip(results, roles, strict=True) if role == "worker"]
    ends = sorted(end for worker in workers for end in worker.ends[:-1])
    alike = len(workers) * period
    last = len(ends) - 1
    count = (last - len(ends) // 2) // alike * alike
    if count > 0:
        return (ends[last] - ends[last - count]) * len(workers) / count
    taken = sum(len(worker.ends) for worker in workers)
    return sum(worker.ended - worker.begun for worker in workers) / taken if taken else 0.0
