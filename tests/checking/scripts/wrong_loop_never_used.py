# finds: parameter does not learn: 3.weight, 3.bias never get

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net().append(torch.nn.Linear(3, 3))
    optimizer, worker, n = begin(transport, "ring_all_reduce", model)
    train(optimizer, model[:3], batches(worker, n))


if __name__ == "__main__":
    launch(work, 3)
