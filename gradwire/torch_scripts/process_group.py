# mypy: disable-error-code="override,assignment"
"""The process group that takes gloo's place: every collective and message of a script, handed to an engine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from gradwire.core.records.errors import RunFailed
from gradwire.torch_scripts.collectives import Plan
from gradwire.torch_scripts.threads import RankThread, here
from gradwire.virtual_time.transport import Simulated

Tensors = Sequence[torch.Tensor]
Part = tuple[Tensors, Tensors]


@dataclass(frozen=True)
class Collective:
    """What one rank enters: which collective of which group it is, and in words, which are the same on all ranks."""

    group: str
    ranks: tuple[int, ...]  # of the world, in the order of their numbers in the group
    number: int
    words: str  # such as "all_reduce of (4,) float32, SUM"
    parts: Sequence[Part]  # tensors that this rank gets, and gives
    root: int
    op: Any

    def run(self, plans: dict[str, Plan], transport: Simulated, at: str) -> None:
        """Do this rank's part, which is called `at` a line. Raises RunFailed if tensors do not fit together."""
        plan = plans[self.words.partition(" ")[0]]
        for outs, ins in self.parts or [([], [])]:
            vectors = [_flat(out) for out in outs]
            try:
                plan(vectors, [_flat(one) for one in ins], self.root, self.op, transport)
            except RuntimeError as error:
                where = f"rank {self.ranks[transport.rank]} is in {self.words} at {at}"
                raise RunFailed(f"mismatch: {where}, with outputs of {_sizes(outs)}: {error}") from error
            for out, vector in zip(outs, vectors, strict=True):
                if not out.is_contiguous():
                    out.detach().copy_(vector.view(out.shape))


@dataclass(frozen=True)
class Message:
    """A message, or its receive; `peer` None: from anybody."""

    group: str
    is_sent: bool
    tensor: torch.Tensor
    peer: int | None  # of the world
    tag: int

    @property
    def words(self) -> str:
        """What it is, such as "send of (4,) float32 to rank 1"."""
        peer = "anybody" if self.peer is None else f"rank {self.peer}"
        way = f"send of {_sizes([self.tensor])} to" if self.is_sent else f"recv of {_sizes([self.tensor])} from"
        return f"{way} {peer}" + (f", tag {self.tag}" if self.tag else "")


class Pending(dist.Work):
    """A call that is under way: see `torch.distributed.Work`. `at` is its line of the script, `source` a sender."""

    def __init__(self, thread: RankThread, call: Collective | Message, result: Tensors, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self.thread, self.call, self._result, self._ranks = thread, call, list(result), ranks
        self.rank, self.at = thread.rank, ""
        self.source = -1
        self.ended, self.ended_at = False, 0.0
        self._future: torch.futures.Future[Any] | None = None

    @property
    def message(self) -> Message:
        assert isinstance(self.call, Message)
        return self.call

    def fits(self, receive: "Pending") -> bool:
        sent, wanted = self.message, receive.message
        same = (sent.group, sent.peer, sent.tag) == (wanted.group, receive.rank, wanted.tag)
        return same and wanted.peer in (None, self.rank)

    def wait(self, timeout: timedelta | None = None) -> bool:  # no wait has a limit: what never ends is found
        self.thread.ask(partial(self.thread.engine.wait, self))
        if self._future is not None and not self._future.done():
            self._future.set_result(self._result)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        found: bool = self.thread.ask(partial(self.thread.engine.look, self))
        return found

    def is_success(self) -> bool:
        return self.ended

    def exception(self) -> None:
        pass

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._ranks.index(self.source) if self.source >= 0 else -1

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[Any]":
        if self._future is None:
            self._future = torch.futures.Future()
            self.thread.futures.append(self)
            if torch._C._current_graph_task_id() != -1:  # a backward pass, at whose end C++ waits for the future
                if torch._C._current_autograd_node() is None:  # that end is now
                    self.thread.settle()
                else:
                    torch.autograd.Variable._execution_engine.queue_callback(self.thread.settle)  # before C++ does
        return self._future


class ScriptGroup(dist.ProcessGroup):
    """A process group whose collectives and messages an engine carries; made in the thread of its rank."""

    group_desc = "virtual"
    supports_coalescing = False
    _device_types = (torch.device("cpu"),)

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta | None = None) -> None:
        super().__init__(rank, size)
        thread = here()
        assert thread is not None, "made by a script"
        self._thread, self._entered = thread, 0
        self.options = SimpleNamespace()  # which torch before 2.13 writes to
        self._kept: list[Pending] = []  # C++ may hold one that Python does not

    def getBackendName(self) -> str:
        return "virtual"

    def getGroupName(self) -> str:
        return self.group_name

    def getGroupDesc(self) -> str:
        return self.group_desc

    @property
    def group_name(self) -> str:
        name: str = c10d._world.pg_names[self]
        return name

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_backend(self, device: torch.device) -> "ScriptGroup":
        return self

    # Collectives, as dist and C++ call them

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Pending:
        return self._enter("all_reduce", [([t], [t]) for t in _listed(tensors)], opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Pending:
        return self._enter("broadcast", [([t], [t]) for t in _listed(tensors)], opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Pending:
        return self._enter("reduce", [([t], [t]) for t in _listed(tensors)], opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Pending:
        return self._enter("all_gather", [(outs, [t]) for outs, t in zip(outputs, inputs, strict=True)], opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Pending:
        return self.allgather([out.view(-1).chunk(self.size()) for out in outputs], inputs, opts)

    def _allgather_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Pending:
        return self.allgather_into_tensor_coalesced([output], [input_], opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Pending:
        return self._enter("reduce_scatter", [([out], ins) for out, ins in zip(outputs, inputs, strict=True)], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Pending:
        return self.reduce_scatter(outputs, [t.reshape(-1).chunk(self.size()) for t in inputs], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Pending:
        return self.reduce_scatter_tensor_coalesced([output], [input_], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Pending:
        return self._enter("all_to_all", [(outputs, inputs)], opts)

    def alltoall_base(
        self, output: torch.Tensor, input_: torch.Tensor, out: list[int], in_: list[int], opts: Any = None
    ) -> Pending:
        pairs = (output, out), (input_, in_)
        outs, ins = (t.split(list(sizes) or [t.size(0) // self.size()] * self.size()) for t, sizes in pairs)
        return self.alltoall(outs, ins, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Pending:
        return self._enter("gather", [(outputs[0] if outputs else [], inputs)], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Pending:
        return self._enter("scatter", [(outputs, inputs[0] if inputs else [])], opts)

    def barrier(self, opts: Any = None) -> Pending:
        return self._enter("barrier", [], None)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.barrier().wait()

    allreduce_coalesced = allreduce
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base  # from torch 2.13 on
    all_to_all_single, all_gather_single_coalesced = alltoall_base, allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # Messages

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Pending:
        return self._begin(Message(self.group_name, True, tensors[0].detach(), self._ranks()[dst], tag), tensors)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Pending:
        return self._begin(Message(self.group_name, False, tensors[0].detach(), self._ranks()[src], tag), tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Pending:
        return self._begin(Message(self.group_name, False, tensors[0].detach(), None, tag), tensors)

    def _ranks(self) -> tuple[int, ...]:
        numbers = c10d._world.pg_group_ranks[self]
        return tuple(sorted(numbers, key=numbers.__getitem__))

    def _enter(self, kind: str, parts: Sequence[Part], opts: Any) -> Pending:
        self._entered += 1
        root, op = getattr(opts, "rootRank", -1), getattr(getattr(opts, "reduceOp", None), "op", None)
        shown = [one for outs, ins in parts for one in (outs if kind == "scatter" else ins)]
        words = f"{kind} of {_sizes(shown)}" if kind not in ("barrier", "all_to_all") else kind
        words += (f", root {root}" if root >= 0 else "") + (f", {op.name}" if op is not None else "")
        call = Collective(self.group_name, self._ranks(), self._entered, words, parts, root, op)
        return self._begin(call, [out for outs, _ in parts for out in outs])

    def _begin(self, call: Collective | Message, result: Tensors) -> Pending:
        pending = Pending(self._thread, call, result, self._ranks())
        self._kept = [*(one for one in self._kept if not one.ended), pending]
        self._thread.ask(partial(self._thread.engine.enter, pending))
        return pending


def _listed(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _sizes(tensors: Iterable[torch.Tensor]) -> str:
    return " and ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a vector: the tensor's own memory where they lie in one piece, else a copy."""
    return tensor.detach().contiguous().view(-1)
