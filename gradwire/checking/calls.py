"""Collectives and messages of a watched run: what they order, and the buffers that are under way."""

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from gradwire.backend.calls import Collective, Message
from gradwire.checking.findings import Finding
from gradwire.checking.rank import SeenRank
from gradwire.checking.seen import Run, Touch
from gradwire.checking.sketch import sketch
from gradwire.torch_scripts.calls import Pending
from gradwire.torch_scripts.threads import RankThread

_FROM_ROOT, _TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")
_LIBRARY = (str(Path(__file__).parents[1]), "torch/distributed/distributed_c10d", "torch/distributed/c10d_logger")
_FUNCTIONAL = (*_LIBRARY, "torch/distributed/_functional_coll", "torch/_")


@dataclass
class Buffer:
    """A part of a storage, in bytes, that a call reads, or `is_written` by it. `is_dense`: it has no gaps."""

    storage: int
    begin: int
    end: int
    is_dense: bool
    is_written: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, is_written: bool = False) -> "Buffer":
        """Return that of a tensor."""
        size, step = tensor.numel(), tensor.element_size()
        begin = int(tensor.storage_offset()) * step
        return cls(tensor.untyped_storage()._cdata, begin, begin + size * step, tensor.is_contiguous(), is_written)

    def overlaps(self, other: "Buffer") -> bool:
        """Return whether they surely share elements."""
        if self.storage != other.storage or self.begin == self.end or other.begin == other.end:
            return False
        if self.is_dense and other.is_dense:
            return self.begin < other.end and other.begin < self.end
        return self.begin == other.begin


class Calls:
    """Notes the calls of all ranks."""

    def __init__(self, run: Run, ranks: Sequence[SeenRank], folder: str) -> None:
        self._run, self._ranks, self._folder = run, ranks, folder
        self._meetings: dict[tuple[str, int], dict[int, tuple[int, ...]]] = {}
        self._messages: dict[tuple[Any, ...], deque[tuple[int, ...]]] = {}

    def enter(self, pending: Pending) -> None:
        """Note a call before it begins."""
        seen, call = self._ranks[pending.rank], pending.call
        seen.tick()
        is_of_script = _calling_file().startswith(self._folder)
        if isinstance(call, Collective):
            self._meetings.setdefault((call.group, call.number), {})[seen.rank] = tuple(seen.clock)
            seen.collectives += len(call.ranks) == self._run.n
            is_inside = seen.modules and not isinstance(seen.modules[0], DistributedDataParallel)
            if is_inside and torch._C._current_graph_task_id() == -1 and call.kind != "barrier":
                self._run.parallel = True
            is_root = call.root < 0 or call.ranks[call.root] == seen.rank
            written = [t for outs, _ in call.parts for t in outs if call.kind not in _FROM_ROOT or not is_root]
            read = [t for _, ins in call.parts for t in ins]
            for name in filter(None, (seen.addresses.get(t.data_ptr()) for t in written if _is_plain(t))):
                seen.written[name] = pending.thread.line()
            if (
                call.kind in ("all_reduce", "reduce")
                and _calling_file(_FUNCTIONAL).startswith(self._folder)
                and read[0].is_floating_point()
                and not read[0].is_sparse
            ):
                owners = [seen.owner_of(t) for t in read]
                seen.sent += [(owner, sketch(t), pending.thread.line()) for owner, t in zip(owners, read, strict=True)]
                if any(owners) and len(call.ranks) < self._run.n:
                    self._run.teams[seen.rank] = tuple(call.ranks)
                task = torch._C._current_graph_task_id()
                if task != -1 and not self._run.parallel:
                    known = {key: value for key, value in seen.summed_on_the_way.items() if key[0] == task}
                    seen.summed_on_the_way = known | {(task, t.data_ptr()): (t, sketch(t)) for t in read}
        else:
            written, read = ([], [call.tensor]) if call.is_sent else ([call.tensor], [])
            if call.is_sent:
                self._messages.setdefault((call.group, seen.rank, call.peer, call.tag), deque()).append(
                    tuple(seen.clock)
                )
        if is_of_script:
            dense = [(t, True) for t in written] + [(t, False) for t in read]
            buffers = [Buffer.of(t, writes) for t, writes in dense if _is_plain(t)]
            for other, others, at in seen.under_way.values():
                clash = next(
                    (b for b in buffers for o in others if o.overlaps(b) and (o.is_written or b.is_written)), None
                )
                if clash:
                    here = pending.thread.line()
                    self._run.touches.append(Touch(seen.rank, here, call.kind, other.call.kind, at, clash.is_written))
            seen.under_way[id(pending)] = (pending, buffers, pending.thread.line())

    def wait(self, pending: Pending) -> None:
        """Note that a rank knows that its call has ended."""
        seen, call = self._ranks[pending.rank], pending.call
        seen.under_way.pop(id(pending), None)
        if isinstance(call, Message):
            if not call.is_sent:
                sent = self._messages.get((call.group, pending.source, seen.rank, call.tag))
                if sent:
                    seen.join(sent.popleft())
            return
        root = call.ranks[call.root] if call.root >= 0 else -1
        for rank, clock in self._meetings.get((call.group, call.number), {}).items():
            if (call.kind in _FROM_ROOT and rank != root) or (call.kind in _TO_ROOT and seen.rank != root):
                continue
            seen.join(clock)


class Touches(TorchDispatchMode):
    """Sees which operations of a rank read or write what is under way, and which write parameters."""

    def __init__(self, run: Run, seen: SeenRank, rank: RankThread) -> None:
        super().__init__()
        self._run, self._seen, self._rank = run, seen, rank

    @override
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        seen = self._seen
        reads, writes = _touched(func)
        if seen.under_way and (reads or writes):
            self._compare(func, args, reads, writes)
        if writes and seen.addresses and not seen.stepping and _is_plain(args[0]):
            name = seen.addresses.get(args[0].data_ptr()) if args[0].numel() else None
            if name is not None:
                seen.written[name] = self._rank.line()
        return func(*args, **(kwargs or {}))

    def _compare(self, func: Any, args: tuple[Any, ...], reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        for i, argument in enumerate(args):
            for tensor in argument if isinstance(argument, list | tuple) else [argument]:
                if not _is_plain(tensor):
                    continue
                touched = Buffer.of(tensor)
                for pending, buffers, at in self._seen.under_way.values():
                    for buffer in buffers:
                        if buffer.overlaps(touched) and (i in writes or (buffer.is_written and i in reads)):
                            self._run.touches.append(
                                Touch(self._rank.rank, self._rank.line(), func._schema.name.removeprefix("aten::"),
                                      pending.call.kind, at, i in writes)
                            )  # fmt: skip


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor with memory of its own."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and not value.is_meta


@cache
def _touched(func: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which arguments of an operation it reads, and which it writes."""
    schema, name = func._schema, func._schema.name.partition("::")[2]
    writes = tuple(
        i for i, argument in enumerate(schema.arguments) if argument.alias_info and argument.alias_info.is_write
    )
    is_view = not writes and any(returned.alias_info for returned in schema.returns)
    if is_view or name.startswith("new_") or name.endswith("_like") or name in ("detach", "resize_", "set_"):
        return (), ()
    overwrites = name in ("copy_", "zero_", "fill_")
    return tuple(i for i in range(len(schema.arguments)) if not (overwrites and i in writes)), writes


def _calling_file(library: Sequence[str] = _LIBRARY) -> str:
    """Return the file that has called the library."""
    frame: Any = sys._getframe(2)
    while frame is not None and any(part in frame.f_code.co_filename for part in library):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_code.co_filename)


def judge(run: Run) -> list[Finding]:
    """Find buffers that are touched while they are under way, and calls that nobody waits for."""
    findings, lines = [], set()
    for touch in run.touches:
        if (touch.called_at, touch.at) in lines:
            continue
        lines |= {(touch.called_at, touch.at), (touch.called_at, "")}
        did = "writes" if touch.writes else "reads"
        what = f"rank {touch.rank} {did} ({touch.operation}) at {touch.at} what the {touch.call} of {touch.called_at} "
        findings.append(
            Finding(
                "buffer under way",
                f"{what}still has under way",
                "call wait() of the Work first",
                touch.at,
                rank=touch.rank,
            )
        )
    for rank, kind, at in run.unwaited:
        if (at, "") not in lines:
            lines.add((at, ""))
            what = f"rank {rank} never waits for its {kind}, so its buffer may change at any time"
            findings.append(Finding("buffer under way", what, "keep the Work and call its wait()", at, rank=rank))
    return findings
