# finds: replicas part: .*each rank changed it in its own way

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "sharded_ring", model)

    noise = torch.Generator().manual_seed(worker)

    def shake(loss):
        with torch.no_grad():
            model[2].bias.add_(0.01 * torch.randn(3, generator=noise))

    train(optimizer, model, batches(worker, n), after=shake)


if __name__ == "__main__":
    launch(work, 3)
