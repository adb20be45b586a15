import torch
import torch.distributed as dist
from common import begin, dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

rank, n = begin()
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
train, rest = torch.utils.data.random_split(dataset(), [48, 12], torch.Generator().manual_seed(0))
sampler = DistributedSampler(train)
held_out = DistributedSampler(rest, shuffle=False, drop_last=True)
loader = DataLoader(train, batch_size=4, shuffle=False, num_workers=0, sampler=sampler)
val = DataLoader(rest, batch_size=4, sampler=held_out)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for images, target in loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for images, target in val:
            total += torch.tensor([(model(images).argmax(1) == target).sum(), len(target)])
    dist.all_reduce(total)
    scheduler.step()
