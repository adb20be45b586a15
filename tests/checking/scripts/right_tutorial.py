import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Data(Dataset):
    def __init__(self, size):
        self.size = size
        self.data = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, model, loader, optimizer, every, path):
        self.model, self.loader, self.optimizer = DistributedDataParallel(model), loader, optimizer
        self.every, self.path = every, path
        self.rank = int(os.environ["RANK"])

    def run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def train(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self.run_batch(source, targets)
            if self.rank == 0 and epoch % self.every == 0:
                torch.save(self.model.module.state_dict(), self.path)


dist.init_process_group("gloo")
path = os.path.join(tempfile.gettempdir(), f"gradwire-check-{os.getpid()}.pt")
data = Data(64)
model = nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
Trainer(model, loader, optimizer, 2, path).train(2)
dist.barrier()
if dist.get_rank() == 0:
    os.remove(path)
dist.destroy_process_group()
