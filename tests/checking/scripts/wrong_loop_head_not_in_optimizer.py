# finds: note: parameter does not learn: weight, bias are in no optimizer

import torch
from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model, head = net(), torch.nn.Linear(3, 3)
    optimizer, worker, n = begin(transport, "streaming_diloco", model)
    train(optimizer, lambda x: head(model(x)), batches(worker, n))


if __name__ == "__main__":
    launch(work, 3)
