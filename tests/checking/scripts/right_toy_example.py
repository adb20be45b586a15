import torch
from common import begin
from torch import nn
from torch.nn.parallel import DistributedDataParallel

begin()
model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
optimizer.zero_grad()
outputs = model(torch.randn(20, 10))
nn.MSELoss()(outputs, torch.randn(20, 5)).backward()
optimizer.step()
