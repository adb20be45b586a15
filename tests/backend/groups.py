"""Ranks of a process group in kept processes, and what they run there."""

import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.backend.registration import NAME, register
from tests.engines import LIMIT
from tests.pools import Pool, rank_here


def on_group(n: int, work: Callable[..., Any], *args: Any, backend: str = NAME, limit: float = LIMIT) -> list[Any]:
    """Call `work(*args)` on each rank of a default group; return what each returned, in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        inner = partial(in_group, f"file://{folder}/store", n, backend, limit, work, args)
        return Pool.running("processes").run(n, inner)


def in_group(url: str, n: int, backend: str, limit: float, work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    register()
    dist.init_process_group(backend, url, timedelta(seconds=limit), n, rank_here())
    try:
        return work(*args)
    finally:
        dist.destroy_process_group()


def all_results() -> dict[str, Any]:
    """What this rank gets of all collectives, each of its own numbers."""
    r, N = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(r)
    own, results = torch.randn(1000), {}

    def note(name: str, *tensors: torch.Tensor) -> None:
        results[name] = [tensor.clone() for tensor in tensors]

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        for vector in (own.clone(), torch.randn(100, 300).t(), (10 * own).to(torch.int64)):
            dist.all_reduce(vector, op)
            note(f"all_reduce {op} {vector.dtype} {vector.shape}", vector)
    for root in range(N):
        vector = own.clone()
        dist.broadcast(vector, root)
        note(f"broadcast of {root}", vector)
        vector = own.clone()
        dist.reduce(vector, root)
        if r == root:
            note(f"reduce to {root}", vector)
        gathered = [torch.empty_like(own) for _ in range(N)] if r == root else None
        dist.gather(own, gathered, root)
        note(f"gather to {root}", *(gathered or []))
        vector = torch.empty(10)
        dist.scatter(vector, [own[10 * k : 10 * k + 10] for k in range(N)] if r == root else None, root)
        note(f"scatter of {root}", vector)
    gathered = [torch.empty_like(own) for _ in range(N)]
    dist.all_gather(gathered, own)
    note("all_gather", *gathered)
    vector = torch.empty(6)
    dist.reduce_scatter_tensor(vector, own[: 6 * N])
    note("reduce_scatter", vector)
    vector = torch.empty(3 * N)
    dist.all_to_all_single(vector, own[: 3 * N].clone())
    note("all_to_all", vector)
    objects: list[Any] = [None] * N
    dist.all_gather_object(objects, {"rank": r})
    results["objects"] = objects
    return results


def trained(numel: int = 300) -> torch.Tensor:
    """The parameters after some steps of DDP, in buckets that are used again."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, numel), nn.Tanh(), nn.Linear(numel, 200)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
