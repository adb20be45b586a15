# finds: replicas part: .*the gradients agree, but lr does not

from functools import partial

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    rate = 0.1 / (1 + transport.rank)
    optimizer, worker, n = begin(transport, "ring_all_reduce", model, partial(torch.optim.SGD, lr=rate))
    train(optimizer, model, batches(worker, n))


if __name__ == "__main__":
    launch(work, 3)
