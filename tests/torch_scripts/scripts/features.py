"""A script that uses torch.distributed in many ways, and writes what each rank ends with to FOLDER/RANK.pt."""

import random
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

Results = dict[str, Any]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    found: Results = {}
    parts = sys.argv[2:] or [name for name in globals() if name.startswith("try_")]
    for part in parts:
        torch.manual_seed(5)
        globals()[part](found, rank, world_size)
    found["random"] = torch.rand(2)
    torch.save(found, f"{sys.argv[1]}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def after(call: Callable[..., object], result: Any, *given: Any) -> Any:
    call(result, *given)
    return result


def try_collectives(found: Results, rank: int, world_size: int) -> None:
    assert dist.get_backend() == "gloo"
    mine = torch.full((2,), float(rank))
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        found[f"all_reduce {op}"] = after(dist.all_reduce, torch.arange(7.0) + rank + 1, op)
    found["bits"] = after(dist.all_reduce, torch.tensor([1 << rank]), dist.ReduceOp.BOR)
    columns = torch.arange(6.0).view(2, 3).t() * (rank + 1)  # not in one piece
    found["all_reduce of columns"] = after(dist.all_reduce, columns)
    found["broadcast"] = after(dist.broadcast, torch.full((3,), float(rank)), world_size - 1)
    found["all_gather"] = after(dist.all_gather, [torch.zeros(2) for _ in range(world_size)], mine)
    found["all_gather_into_tensor"] = after(dist.all_gather_into_tensor, torch.zeros(world_size * 2), mine)
    given = torch.arange(2.0 * world_size) * (rank + 1)
    found["reduce_scatter_tensor"] = after(dist.reduce_scatter_tensor, torch.zeros(2), given)
    parts = [torch.full((2,), float(rank + i)) for i in range(world_size)]
    found["reduce_scatter"] = after(dist.reduce_scatter, torch.zeros(2), parts)
    given = torch.arange(float(world_size)) + 10 * rank
    found["all_to_all_single"] = after(dist.all_to_all_single, torch.zeros(world_size), given)
    sizes, own = [k + 1 for k in range(world_size)], [rank + 1] * world_size
    given, out = torch.full((sum(own),), float(rank)), torch.zeros(sum(sizes))
    found["all_to_all_single, uneven"] = after(dist.all_to_all_single, out, given, sizes, own)
    reduced = after(dist.reduce, torch.full((3,), rank + 1.0), 1)
    found["reduce"] = reduced if rank == 1 else None
    gathered = [torch.zeros(1) for _ in range(world_size)] if rank == 0 else None
    dist.gather(torch.full((1,), float(rank)), gathered, 0)
    found["gather"] = gathered
    scattered = [torch.full((2,), float(i)) for i in range(world_size)] if rank == 1 else None
    found["scatter"] = after(dist.scatter, torch.zeros(2), scattered, 1)
    objects: list[Any] = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = objects
    first: list[Any] = [{"from": 0}] if rank == 0 else [None]
    dist.broadcast_object_list(first)
    found["object"] = first
    work = dist.all_reduce(torch.ones(5), async_op=True)
    assert work is not None
    work.wait()
    assert work.is_completed()
    found["future"] = work.get_future().wait()
    dist.monitored_barrier()
    group = dist.new_group([0, world_size - 1])
    if isinstance(group, dist.ProcessGroup):
        t = torch.tensor([rank + 1.0])
        dist.all_reduce(t, group=group)
        dist.broadcast(t, world_size - 1, group=group)
        found["group"] = t


def try_messages(found: Results, rank: int, world_size: int) -> None:
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    t = torch.zeros(4)
    if rank == 0:
        dist.send(torch.arange(4.0), right)
        dist.recv(t, left)
    else:
        dist.recv(t, left)
        dist.send(t + 1, right)
    found["round"] = t
    t = torch.zeros(3)
    operations = [dist.P2POp(dist.isend, torch.full((3,), float(rank)), right), dist.P2POp(dist.irecv, t, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    found["batch"] = t
    if rank == 0:
        sources, total = [], torch.zeros(1)
        for _ in range(world_size - 1):
            t = torch.zeros(1)
            sources.append(dist.recv(t, tag=7))
            total += t
        found["anybody"] = sorted(sources), total
    else:
        dist.send(torch.tensor([float(rank)]), 0, tag=7)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(20, 300), nn.BatchNorm1d(300), nn.Linear(300, 300)
        self.last, self.unused = nn.Linear(300, 4), nn.Linear(20, 4)

    def forward(self, x: torch.Tensor, use: bool = False) -> torch.Tensor:
        y: torch.Tensor = self.last(self.second(nn.functional.dropout(self.norm(self.first(x)).relu(), 0.2)))
        return y + self.unused(x) if use else y


def train(found: Results, name: str, rank: int, ddp: Any, use: bool = True) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(rank)
    for step in range(3):
        x, y = torch.randn(8, 20), torch.randint(4, (8,))
        optimizer.zero_grad()
        if name == "no_sync" and step == 0:
            with ddp.no_sync():
                nn.functional.cross_entropy(ddp(x, use), y).backward()
        nn.functional.cross_entropy(ddp(x, use), y).backward()
        optimizer.step()
    found[name] = {key: value.clone() for key, value in ddp.module.state_dict().items()}


def try_ddp(found: Results, rank: int, world_size: int) -> None:
    for name, use, options in (
        ("ddp", True, {}),
        ("no_sync", True, {}),
        ("small buckets", True, {"bucket_cap_mb": 0.1}),
        ("unused", False, {"find_unused_parameters": True}),
        ("static", True, {"static_graph": True}),
        ("views", True, {"gradient_as_bucket_view": True}),
    ):
        torch.manual_seed(5)
        train(found, name, rank, DistributedDataParallel(Model(), **options), use)


def try_hook(found: Results, rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=0.1)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(found, "fp16", rank, ddp)


def try_fsdp(found: Results, rank: int, world_size: int) -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 4))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.randint(4, (8,))).backward()
        found["norm"] = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()  # type: ignore[attr-defined]
        optimizer.step()
    found["fsdp"] = {name: p.full_tensor() for name, p in model.state_dict().items()}


def try_random(found: Results, rank: int, world_size: int) -> None:
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    drawn = []
    for _ in range(3):
        dist.barrier()
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
    found["drawn"] = drawn


if __name__ == "__main__":
    main()
