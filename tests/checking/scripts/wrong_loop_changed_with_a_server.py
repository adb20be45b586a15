# finds: replicas part: rank 1 changed 0.weight before step 2, but the server has the model

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "param_server", model)

    def clamp(loss):
        with torch.no_grad():
            model[0].weight.clamp_(-0.1, 0.1)

    train(optimizer, model, batches(worker, n), after=clamp)


if __name__ == "__main__":
    launch(work, 3)
