# finds: order repeats: epochs 1 and 2

from common import dataset
from common_loops import begin, net, train
from torch.utils.data import DataLoader, DistributedSampler

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "gossip", model)
    loader = DataLoader(dataset(), 5, sampler=DistributedSampler(dataset(), n, worker))
    train(optimizer, model, (batch for _ in range(2) for batch in loader))


if __name__ == "__main__":
    launch(work, 3)
