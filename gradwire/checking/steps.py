"""The record of a step: made before the optimizer acts, or once its closure has computed the gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from gradwire.checking import loops
from gradwire.checking.rank import SeenRank
from gradwire.checking.seen import Parameter, Step
from gradwire.checking.sketch import Sketch, sketch
from gradwire.torch_scripts.threads import RankThread
from gradwire.worker_optimizer import WorkerOptimizer


def sketches(optimizer: torch.optim.Optimizer) -> dict[int, Sketch]:
    """Return those of its parameters, by id."""
    return {id(p): sketch(p) for p in _parameters(optimizer) if _is_whole(p)}


def record(
    rank: RankThread, seen: SeenRank, optimizer: torch.optim.Optimizer, given: Sequence[Any], before: dict[int, Sketch]
) -> Step:
    """Return a step that an optimizer takes with the gradients of now, and note them as taken.

    `given`: to its step(); `before`: sketches of the parameters before it.
    """
    index = seen.optimizers[optimizer]
    names, parameters = seen.names(), {}
    ways, samples, groups = set[str](), 0.0, loops.groups_of(optimizer)
    if isinstance(optimizer, WorkerOptimizer):
        ways, samples = loops.ways_of(optimizer.strategy), float(given[0] if given else 1)
    of_optimizer = _parameters(optimizer)
    seen.note_models(of_optimizer, rank.line(), isinstance(optimizer, WorkerOptimizer))
    for i, p in enumerate(of_optimizer):
        if not _is_whole(p):
            continue
        name = names.get(id(p), f"parameter {i} of {type(optimizer).__name__}")
        own = seen.own.get(p)
        if own is not None and own.taken >= set(own.passes):
            own = None  # nothing has reached it since the last step
        is_stale = own is not None and bool(own.taken & set(own.passes))
        gradient = None if p.grad is None or isinstance(p.grad, DTensor) else sketch(p.grad)
        parameters[name] = Parameter(
            name, p.numel(), before[id(p)], None if own is None else own.sketch, gradient,
            () if own is None else tuple(own.passes), is_stale, seen.sent_at(p, own), first_of(p),
        )  # fmt: skip
        if own is not None:
            own.taken.update(own.passes)
    seen.stepped_now = list(zip(parameters, filter(_is_whole, of_optimizer), strict=False))
    tasks = {task for each in parameters.values() for task in each.passes}
    key = seen.key(index, next(iter(parameters), ""))
    return Step(
        rank.rank, 1 + seen.taken.get(index, 0), key, rank.line(), type(optimizer).__name__,
        [{k: v for k, v in group.items() if k != "params"} for group in groups],
        parameters, seen.buffers(), False, frozenset(seen.how | ways),
        {task: seen.criteria[task] for task in tasks if task in seen.criteria},
        {task: seen.lines[task] for task in tasks if task in seen.lines}, dict(seen.written),
        frozenset(seen.rows), samples,
    )  # fmt: skip


def first_of(tensor: torch.Tensor) -> float:
    """Return the first element."""
    return complex(tensor.flatten()[0]).real if tensor.numel() else 0.0


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in loops.groups_of(optimizer) for p in group["params"]]


def _is_whole(p: torch.Tensor) -> bool:
    return not (isinstance(p, DTensor) or p.is_meta)
