"""The process group that takes gloo's place: every collective and message of a script, handed to an engine."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import ReduceOp

from torch_scripts import collectives
from torch_scripts.collectives import AllReduce
from torch_scripts.threads import RankThread
from virtual_time.transport import Simulated

_here = threading.local()
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Collective:
    """What one rank enters: which collective of its group it is, in words and by number, and what this rank does."""

    group: str
    ranks: tuple[int, ...]  # of the world, in the order of their numbers in the group
    number: int
    words: str  # such as "all_reduce of (4,) float32, SUM"; the same on all ranks
    run: Callable[[Simulated], None]


@dataclass(frozen=True)
class Send:
    """A message of the script."""

    group: str
    tensor: torch.Tensor
    dst: int  # of the world
    tag: int


@dataclass(frozen=True)
class Receive:
    """A receive of the script; `src` None: from anybody."""

    group: str
    tensor: torch.Tensor
    src: int | None
    tag: int


Call = Collective | Send | Receive


class Engine(Protocol):
    """What carries the calls of ranks; all of it is called on the hub."""

    def enter(self, pending: "Pending") -> None:
        """Begin what a rank has called."""

    def wait(self, pending: "Pending") -> None:
        """Suspend the rank until a call of it has ended. Raises RunFailed."""

    def look(self, pending: "Pending") -> bool:
        """Return whether a call of the rank has ended, as far as that rank can know."""


@dataclass
class Here:
    """The rank whose thread this is."""

    rank: int
    thread: RankThread
    engine: Engine
    add: AllReduce

    def __post_init__(self) -> None:
        self.futures: list[Pending] = []  # which have one that nobody has set

    def settle(self) -> None:
        """Wait for all calls whose futures are asked for: what follows would wait for them in C++."""
        while self.futures:
            self.futures.pop(0).wait()


def here() -> Here | None:
    """Return the rank whose thread this is; None: it is no rank's."""
    return getattr(_here, "rank", None)


def be(rank: Here) -> None:
    """Make this the thread of a rank."""
    _here.rank = rank


class Pending(dist.Work):
    """A call that is under way: see `torch.distributed.Work`. `at` is its line of the script, `source` a sender."""

    def __init__(self, rank: Here, call: Call, result: list[torch.Tensor], sources: Sequence[int] = ()) -> None:
        super().__init__()
        self.here, self.call, self._result, self._sources = rank, call, result, sources
        self.at = ""
        self.source = -1
        self.ended = False
        self.ended_at = 0.0
        self._future: torch.futures.Future[Any] | None = None

    @property
    def rank(self) -> int:
        """The rank that has called."""
        return self.here.rank

    def wait(self, timeout: timedelta | None = None) -> bool:
        """See torch. No wait has a limit: what never ends is found."""
        self.here.thread.ask(partial(self.here.engine.wait, self))
        if self._future is not None and not self._future.done():
            self._future.set_result(self._result)
        return True

    def synchronize(self) -> None:
        """See torch."""
        self.wait()

    def is_completed(self) -> bool:
        """See torch."""
        found: bool = self.here.thread.ask(partial(self.here.engine.look, self))
        return found

    def is_success(self) -> bool:
        """See torch."""
        return self.ended

    def exception(self) -> None:
        """See torch: what fails ends the run."""

    def result(self) -> list[torch.Tensor]:
        """See torch."""
        return self._result

    def source_rank(self) -> int:
        """See torch: its number in the group."""
        return self._sources.index(self.source) if self.source >= 0 else -1

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[Any]":
        """See torch. Inside a backward pass, what is queued behind it would wait for this in C++: wait before that."""
        if self._future is None:
            self._future = torch.futures.Future()
            self.here.futures.append(self)
            if torch._C._current_graph_task_id() != -1:
                if torch._C._current_autograd_node() is None:  # the pass is over: this is one of what was queued
                    self.here.settle()
                else:
                    torch.autograd.Variable._execution_engine.queue_callback(self.here.settle)
        return self._future


class ScriptGroup(dist.ProcessGroup):
    """A process group whose collectives and messages an engine carries; made in the thread of its rank."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta | None = None) -> None:
        super().__init__(rank, size)
        owner = here()
        assert owner is not None, "made by a script"
        self._here = owner
        self._entered = 0
        self.options = SimpleNamespace(_timeout=timeout)  # which torch before 2.13 writes to
        self._kept: list[Pending] = []  # C++ may hold one that Python does not

    # What torch asks of a group

    def getBackendName(self) -> str:  # noqa: N802 - torch's name; for "gloo" C++ would expect its own class
        """See torch."""
        return "virtual"

    def getGroupName(self) -> str:  # noqa: N802
        """See torch."""
        return self.group_name

    @property
    def group_name(self) -> str:
        """See torch."""
        name: str = c10d._world.pg_names[self]
        return name

    def getGroupDesc(self) -> str:  # noqa: N802
        """See torch."""
        return "virtual"

    @property
    def group_desc(self) -> str:
        """See torch."""
        return "virtual"

    def _set_sequence_number_for_group(self) -> None:
        """See torch."""

    supports_coalescing = False

    def _get_backend(self, device: torch.device) -> "ScriptGroup":
        return self

    # Collectives

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        op = _op(opts)
        run = [partial(_in_place, t, collectives.all_reduce_by, op, add=self._here.add) for t in _list(tensors)]
        return self._enter(f"all_reduce of {_sizes(tensors)}, {op.name}", run, _list(tensors))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        run = [partial(_in_place, t, collectives.broadcast_from, opts.rootRank) for t in _list(tensors)]
        return self._enter(f"broadcast of {_sizes(tensors)} from {opts.rootRank}", run, _list(tensors))

    def reduce(self, tensors: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        op, root = _op(opts), opts.rootRank
        run = [partial(_in_place, t, collectives.reduce_to, root, op) for t in _list(tensors)]
        return self._enter(f"reduce of {_sizes(tensors)} to {root}, {op.name}", run, _list(tensors))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        run = [partial(_gather_all, outs, t) for outs, t in zip(outputs, inputs, strict=True)]
        return self._enter(f"all_gather of {_sizes(inputs)}", run, [one for outs in outputs for one in outs])

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        run = [
            partial(_gather_all, out.view(-1).chunk(self.size()), t) for out, t in zip(outputs, inputs, strict=True)
        ]
        return self._enter(f"all_gather of {_sizes(inputs)}", run, list(outputs))

    def _allgather_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Pending:
        return self.allgather_into_tensor_coalesced([output], [input_], opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Pending:
        """See torch."""
        op = _op(opts)
        run = [partial(_reduce_scatter, out, ins, op) for out, ins in zip(outputs, inputs, strict=True)]
        words = f"reduce_scatter of {_sizes([one for ins in inputs for one in ins])}, {op.name}"
        return self._enter(words, run, list(outputs))

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        return self.reduce_scatter(outputs, [t.reshape(-1).chunk(self.size()) for t in inputs], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Pending:
        return self.reduce_scatter_tensor_coalesced([output], [input_], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        return self._enter("all_to_all", [partial(_all_to_all, outputs, inputs)], list(outputs))

    def alltoall_base(
        self, output: torch.Tensor, input_: torch.Tensor, out_splits: list[int], in_splits: list[int], opts: Any = None
    ) -> Pending:
        """See torch."""
        N = self.size()
        outs, ins = (
            t.split(list(splits) or [t.size(0) // N] * N) for t, splits in ((output, out_splits), (input_, in_splits))
        )
        return self.alltoall(outs, ins)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Pending:
        """See torch."""
        outs, root = outputs[0] if outputs else [], opts.rootRank
        run = [partial(_rooted, collectives.gather_to, outs, inputs[0], root)]
        return self._enter(f"gather of {_sizes(inputs)} to {root}", run, list(outs))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Pending:
        """See torch."""
        ins, root = inputs[0] if inputs else [], opts.rootRank
        run = [partial(_rooted, collectives.scatter_from, ins, outputs[0], root)]
        return self._enter(f"scatter of {_sizes(outputs)} from {root}", run, list(outputs))

    def barrier(self, opts: Any = None) -> Pending:
        """See torch."""
        return self._enter("barrier", [collectives.meet], [])

    all_gather_single = _allgather_base  # from torch 2.13 on
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # Messages

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Pending:
        """See torch."""
        return self._begin(Send(self.group_name, tensors[0].detach(), self._ranks()[dst], tag), list(tensors))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Pending:
        """See torch."""
        return self._begin(Receive(self.group_name, tensors[0].detach(), self._ranks()[src], tag), list(tensors))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Pending:
        """See torch."""
        return self._begin(Receive(self.group_name, tensors[0].detach(), None, tag), list(tensors))

    def _ranks(self) -> tuple[int, ...]:
        numbers = c10d._world.pg_group_ranks[self]
        return tuple(sorted(numbers, key=numbers.__getitem__))

    def _enter(self, words: str, run: Sequence[Callable[[Simulated], None]], result: list[torch.Tensor]) -> Pending:
        self._entered += 1

        def of_each(transport: Simulated) -> None:
            for one in run:
                one(transport)

        return self._begin(Collective(self.group_name, self._ranks(), self._entered, words, of_each), result)

    def _begin(self, call: Call, result: list[torch.Tensor]) -> Pending:
        pending = Pending(self._here, call, result, self._ranks())
        self._kept = [one for one in self._kept if not one.ended]
        self._kept.append(pending)
        self._here.thread.ask(partial(self._here.engine.enter, pending))
        return pending


def _op(opts: Any) -> Any:
    return ReduceOp.SUM if opts is None else opts.reduceOp.op


def _list(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _sizes(tensors: Tensors) -> str:
    return " and ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in _list(tensors))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a vector: the tensor's own memory where they lie in one piece, else a copy."""
    return tensor.detach().contiguous().view(-1)


def _in_place(tensor: torch.Tensor, do: Callable[..., None], *arguments: Any, **more: Any) -> None:
    *arguments, transport = arguments
    vector = _flat(tensor)
    transport.lend(vector)
    do(vector, *arguments, transport, **more)
    if not tensor.is_contiguous():
        tensor.detach().copy_(vector.view(tensor.shape))


def _gather_all(outs: Tensors, tensor: torch.Tensor, transport: Simulated) -> None:
    vectors = [_flat(out) for out in outs]
    collectives.gather_all(vectors, _flat(tensor), transport)
    _copy_back(outs, vectors)


def _reduce_scatter(out: torch.Tensor, ins: Tensors, op: ReduceOp, transport: Simulated) -> None:
    vector = _flat(out)
    collectives.reduce_scatter_by(vector, [_flat(one) for one in ins], op, transport)
    _copy_back([out], [vector])


def _all_to_all(outs: Tensors, ins: Tensors, transport: Simulated) -> None:
    vectors = [_flat(out) for out in outs]
    collectives.all_to_all(vectors, [_flat(one) for one in ins], transport)
    _copy_back(outs, vectors)


def _rooted(do: Callable[..., None], several: Tensors, one: torch.Tensor, root: int, transport: Simulated) -> None:
    vectors, vector = [_flat(t) for t in several], _flat(one)
    if do is collectives.gather_to:
        do(vectors, vector, root, transport)
        _copy_back(several, vectors)
    else:
        do(vector, vectors, root, transport)
        _copy_back([one], [vector])


def _copy_back(tensors: Tensors, vectors: Tensors) -> None:
    for tensor, vector in zip(tensors, vectors, strict=True):
        if not tensor.is_contiguous():
            tensor.detach().copy_(vector.view(tensor.shape))
