# finds: gradient is not the mean: .*3 times the mean

from common_loops import batches, begin, net, train
from torch.nn import functional as F

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "local_sgd", model)
    train(optimizer, model, batches(worker, n), lambda out, y: F.cross_entropy(out, y) * n)


if __name__ == "__main__":
    launch(work, 3)
