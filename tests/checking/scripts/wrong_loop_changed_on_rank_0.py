# finds: replicas part: .*only rank 0 changed it

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "ring_all_reduce", model)

    def shrink(loss):
        if transport.rank == 0:
            with torch.no_grad():
                model[0].weight.mul_(0.9)

    train(optimizer, model, batches(worker, n), after=shrink)


if __name__ == "__main__":
    launch(work, 3)
