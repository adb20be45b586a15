# finds: replicas part: .*the gradients agree, but lr does not

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "overlapped_ring", model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    train(optimizer, model, batches(worker, n), after=plateau.step)


if __name__ == "__main__":
    launch(work, 3)
