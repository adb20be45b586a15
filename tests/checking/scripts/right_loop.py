"""A loop for each strategy that is named, one after another."""

import os
import sys
from functools import partial

import torch
from common_loops import SGD, batches, begin, net, train

from gradwire import launch


def work(transport, name):
    model = net()
    make = partial(torch.optim.Adam, lr=0.01) if name == "des_loc" else SGD
    optimizer, worker, n = begin(transport, name, model, make)
    return train(optimizer, model, batches(worker, n))


if __name__ == "__main__":
    for name in sys.argv[1:] or ("param_server", "ring_all_reduce", "fully_sharded", "streaming_diloco"):
        print(name, launch(work, int(os.environ["WORLD_SIZE"]), name))
