# mypy: disable-error-code="override,assignment"
"""The base of this project's process groups, which makes a collective or a message of every call of torch."""

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from gradwire.backend.calls import Call, Collective, Message, Part, Tensors, sizes_of
from gradwire.core.transports import timing

_WITH_ROOT, _REDUCES = ("broadcast", "reduce", "gather", "scatter"), ("all_reduce", "reduce", "reduce_scatter")
_MOST_WORDS = 1000  # that are kept
_GOES_ON = timedelta(milliseconds=1)  # rank 0 of a monitored barrier looks at each rank at least so long


class CollectiveGroup(dist.ProcessGroup):
    """A process group written in Python; what it does is in `enter` and `begin`.

    `kind` is what it is called. `limit` bounds its waits; None: nothing does.
    """

    kind = ""
    group_desc = ""
    supports_coalescing = False

    def __init__(self, rank: int, size: int, limit: timedelta | None) -> None:
        super().__init__(rank, size)
        self.limit = limit
        self._entered, self._name = 0, ""
        self._words: dict[tuple[Any, ...], str] = {}  # of its calls, since the same ones come each step
        self._ranks: tuple[int, ...] = ()
        self.options = SimpleNamespace()  # which torch before 2.13 writes to

    @abstractmethod
    def enter(
        self, call: Collective, result: Tensors, limit: timedelta | None, given: Tensors, is_awaited: bool
    ) -> Call:
        """Enter a collective; `is_awaited`: the caller waits for it at once. A profiler sees the tensors `given`."""

    @abstractmethod
    def begin(self, call: Message, tensors: Tensors) -> Call:
        """Begin to send or receive a message."""

    def seconds(self) -> float:
        """Return the time of this rank."""
        return timing.now()

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices; none while torch makes the group, so that it attaches no recorder of its own."""
        return [torch.device("cpu")] if self in c10d._world.pg_map else []

    def getBackendName(self) -> str:
        return self.kind

    def getGroupName(self) -> str:
        return self.group_name

    def getGroupDesc(self) -> str:
        return self.group_desc

    @property
    def group_name(self) -> str:
        self._name = c10d._world.pg_names.get(self, self._name)  # it is asked for after it has been destroyed, too
        return self._name

    def name(self) -> str:
        return self.kind

    def set_timeout(self, timeout: timedelta) -> None:
        self.limit = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_backend(self, device: torch.device) -> "CollectiveGroup":
        return self

    # Collectives, as dist and C++ call them

    def allreduce(self, tensors: Tensors, opts: Any = None, timeout: timedelta | None = None) -> Call:
        tensors = _listed(tensors)
        if tensors[0].is_sparse:
            return self._all_reduce_sparse(tensors[0], opts)
        return self._enter("all_reduce", [(t, t) for t in zip(tensors)], opts, timeout)

    def broadcast(self, tensors: Tensors, opts: Any = None, timeout: timedelta | None = None) -> Call:
        return self._enter("broadcast", [(t, t) for t in zip(_listed(tensors))], opts, timeout)

    def reduce(self, tensors: Tensors, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Call:
        if isinstance(opts, int):
            opts = SimpleNamespace(rootRank=opts, reduceOp=dist.ReduceOp.SUM if op is None else op)
        return self._enter("reduce", [([t], [t]) for t in _listed(tensors)], opts, timeout)

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Call:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        parts = [(outs, [t]) for outs, t in zip(outputs, inputs, strict=True)]
        return self._enter("all_gather", parts, opts, timeout)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Call:
        return self.allgather([list(of_all) for of_all in zip(*outputs, strict=True)], inputs, opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Call:
        return self.allgather([out.view(-1).chunk(self.size()) for out in outputs], inputs, opts)

    def _allgather_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Call:
        return self.allgather_into_tensor_coalesced([output], [input_], opts)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, timeout: timedelta | None = None
    ) -> Call:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        parts = [([out], ins) for out, ins in zip(outputs, inputs, strict=True)]
        return self._enter("reduce_scatter", parts, opts, timeout)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Call:
        return self.reduce_scatter(outputs, [t.reshape(-1).chunk(self.size()) for t in inputs], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Call:
        return self.reduce_scatter_tensor_coalesced([output], [input_], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Call:
        return self._enter("all_to_all", [(outputs, inputs)], opts)

    def alltoall_base(
        self, output: torch.Tensor, input_: torch.Tensor, out: list[int], in_: list[int], opts: Any = None
    ) -> Call:
        pairs = (output, out), (input_, in_)
        outs, ins = (t.split(list(sizes) or [t.size(0) // self.size()] * self.size()) for t, sizes in pairs)
        return self._enter("all_to_all", [(outs, ins)], opts, given=[input_])

    def gather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Call:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        return self._enter("gather", [(outputs[0] if outputs else [], inputs)], opts, timeout)

    def scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, timeout: timedelta | None = None
    ) -> Call:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        return self._enter("scatter", [(outputs, inputs[0] if inputs else [])], opts, timeout)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Call:
        return self._enter("barrier", [], opts, timeout)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """See torch: rank 0 hears of every rank in turn, and then answers all."""
        me, limit = self.rank(), self.limit if timeout is None else timeout
        if me:
            try:
                self.send([torch.ones(1)], 0).wait(limit)
                self.recv([torch.ones(1)], 0).wait(limit)
            except RuntimeError as error:
                raise RuntimeError(
                    f"Rank {me} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                    f"from rank 0: {error}"
                ) from error
            return
        if limit is not None and limit <= timedelta(0):
            raise RuntimeError("Rank 0 timed out in monitoredBarrier after 0 ms.")
        missing, begun = [], self.seconds()
        for rank in range(1, self.size()):
            left = limit and limit - timedelta(seconds=self.seconds() - begun)
            try:
                self.recv([torch.ones(1)], rank).wait(left and max(left, _GOES_ON))
            except RuntimeError as error:
                missing.append(str(rank))
                if not wait_all_ranks:
                    raise RuntimeError(f"Rank {rank} failed to pass monitoredBarrier: {error}") from error
        if missing:
            raise RuntimeError(f"Ranks {', '.join(missing)} failed to pass monitoredBarrier in {limit}")
        for work in [self.send([torch.ones(1)], rank) for rank in range(1, self.size())]:
            work.wait()

    allreduce_coalesced = allreduce
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base  # from torch 2.13 on
    all_to_all_single, all_gather_single_coalesced = alltoall_base, allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # Messages

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Call:
        peer = self._peer("send to", dst)
        return self.begin(Message(self.group_name, True, tensors[0].detach(), peer, tag), tensors)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Call:
        peer = self._peer("recv from", src)
        return self.begin(Message(self.group_name, False, tensors[0].detach(), peer, tag), tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Call:
        return self.begin(Message(self.group_name, False, tensors[0].detach(), None, tag), tensors)

    def _peer(self, call: str, rank: int) -> int:
        if not 0 <= rank < self.size():
            raise ValueError(f"{call} rank {rank}: the group has ranks 0 to {self.size() - 1}")
        return self.ranks()[rank]

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of the world that are its members, in the order of their numbers in it."""
        if not self._ranks:
            numbers = c10d._world.pg_group_ranks[self]
            self._ranks = tuple(sorted(numbers, key=numbers.__getitem__))
        return self._ranks

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Call:
        """Add up the values that any rank has, as every rank: each gathers the indices and values of all."""
        if (op := _op_of("all_reduce", opts)) != dist.ReduceOp.SUM:
            raise NotImplementedError(f"all_reduce of sparse tensors with {op}: gloo has only SUM")
        mine, everybody = tensor.coalesce(), range(self.size())
        counts = [torch.zeros(1, dtype=torch.long) for _ in everybody]
        self.allgather([counts], [torch.tensor([mine._nnz()])]).wait()
        gathered = []
        for part in (mine.indices().t(), mine.values()):
            outs = [part.new_empty((int(count), *part.shape[1:])) for count in counts]
            pending = self.alltoall(outs, [part] * self.size())
            pending.wait()
            gathered.append(torch.cat(outs))
        indices, values = gathered
        tensor.copy_(torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce())
        pending.tensors = [tensor]
        return pending

    def _enter(
        self, kind: str, parts: Sequence[Part], opts: Any, timeout: timedelta | None = None, given: Tensors = ()
    ) -> Call:
        """Enter a collective; `opts` are options of torch's, the rank of its root, or how it reduces."""
        self._entered += 1
        root, op = getattr(opts, "rootRank", 0 if kind in _WITH_ROOT else -1), _op_of(kind, opts)
        root = opts if isinstance(opts, int) else root
        limit = timeout or getattr(opts, "timeout", None)
        shown = [tensor for outs, ins in parts for tensor in (outs if kind == "scatter" else ins)]
        key = kind, root, op, *[(tensor.shape, tensor.dtype) for tensor in shown]
        words = self._words.get(key, "")
        if not words:
            words = f"{kind} of {sizes_of(shown)}" if kind not in ("barrier", "all_to_all") else kind
            words += (f", root {root}" if root >= 0 else "") + (f", {op.name}" if op is not None else "")
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            self._words[key] = words
        call = Collective(self.group_name, self.ranks(), self._entered, words, parts, root, op)
        given = given or [tensor for _, ins in parts for tensor in ins]
        result = [out for outs, _ in parts for out in outs]
        return self.enter(call, result, limit, given, is_awaited=not getattr(opts, "asyncOp", True))


def _op_of(kind: str, opts: Any) -> Any:
    """Return how a collective reduces; None: it does not."""
    if kind not in _REDUCES:
        return None
    op = getattr(opts, "reduceOp", opts)
    return dist.ReduceOp.SUM if op is None else getattr(op, "op", op)


def _listed(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
