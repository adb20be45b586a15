# finds: samples overlap: .*the same seed

from common import dataset
from common_loops import begin, net, train
from torch.utils.data import DataLoader, DistributedSampler

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "async_param_server", model)
    sampler = DistributedSampler(dataset(), n, worker, seed=worker)
    train(optimizer, model, iter(DataLoader(dataset(), 5, sampler=sampler)))


if __name__ == "__main__":
    launch(work, 3)
