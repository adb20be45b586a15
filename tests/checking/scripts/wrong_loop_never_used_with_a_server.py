# finds: parameter does not learn: skip.weight, skip.bias never get

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.skip = net(), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.body(x)


def work(transport):
    model = Net()
    optimizer, worker, n = begin(transport, "sharded_param_server", model)
    train(optimizer, model, batches(worker, n))


if __name__ == "__main__":
    launch(work, 3)
