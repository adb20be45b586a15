# mypy: ignore-errors
"""Train a model, as on a GPU a rank."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel

rank = int(os.environ["LOCAL_RANK"])
assert torch.cuda.is_available()
assert torch.cuda.device_count() == torch.accelerator.device_count() == int(os.environ["WORLD_SIZE"])
assert torch.accelerator.current_accelerator() is not None
torch.cuda.set_device(rank)
dist.init_process_group(backend="nccl", device_id=torch.device(f"cuda:{rank}"))
mesh = init_device_mesh(device_type="cuda", mesh_shape=(dist.get_world_size(),))
model = torch.nn.Linear(4, 1).to(rank)
model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[rank])
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    x = torch.randn(8, 4, pin_memory=True).cuda(non_blocking=True)
    y = torch.ones(8, 1, device=rank).to(rank).to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = ((model(x) - y.to(torch.device("cuda", rank))) ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
total = torch.ones(1, device=f"cuda:{rank}")
dist.all_reduce(total, group=mesh.get_group())
torch.cuda.synchronize()
with torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.current_stream().synchronize()
assert total.item() == dist.get_world_size()
dist.destroy_process_group()

dist.init_process_group()  # of the accelerator there is, or of the CPU
sharded = FullyShardedDataParallel(torch.nn.Linear(4, 1))
sharded(torch.ones(2, 4, device="cuda")).sum().backward()
print(total.device, torch.cuda.current_device() == rank)
