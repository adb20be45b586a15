# finds: samples overlap: .*give the loader a DistributedSampler

from common import dataset
from common_loops import begin, net, train
from torch.utils.data import DataLoader

from gradwire import launch


def work(transport):
    model = net()
    optimizer, _worker, _n = begin(transport, "ring_all_reduce", model)
    train(optimizer, model, iter(DataLoader(dataset(), 10)))


if __name__ == "__main__":
    launch(work, 3)
