# finds: gradient is not the mean: .*1/2 of the mean.*the strategy does it

from common_loops import batches, begin, net, train
from torch.nn import functional as F

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "async_param_server", model)
    train(optimizer, model, batches(worker, n), lambda out, y: F.cross_entropy(out, y) / n)


if __name__ == "__main__":
    launch(work, 3)
