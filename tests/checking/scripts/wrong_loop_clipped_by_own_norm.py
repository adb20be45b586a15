# finds: gradient is not the mean: .*clip_norm

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport, name):
    model = net()
    optimizer, worker, n = begin(transport, name, model)
    clip = torch.nn.utils.clip_grad_norm_
    train(optimizer, model, batches(worker, n), change=lambda loss: clip(model.parameters(), 0.1))


if __name__ == "__main__":
    for name in ("local_sgd", "param_server", "ring_all_reduce"):  # of which the first may
        launch(work, 3, name)
