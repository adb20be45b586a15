"""Loops whose models, gradients or data differ as they may: local clipping, uneven batches, EMA, schedules, codecs."""

import os
from copy import deepcopy
from functools import partial

import torch
from common import dataset
from common_loops import SGD, batches, begin, net, train
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from gradwire import STRATEGIES, TopK, WorkerOptimizer, launch


def clipped_before_local_steps(transport):
    model = net()
    optimizer, worker, n = begin(transport, "local_sgd", model)
    train(optimizer, model, batches(worker, n), change=lambda _: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


def clipped_by_a_strategy(transport):
    model, step = net(), [0]
    optimizer = WorkerOptimizer(
        model, transport, STRATEGIES["ring_all_reduce"](), SGD, clip_norm=0.1, codec=TopK(density=0.5),
        schedule=lambda processed: 1 / (1 + processed),
    )  # fmt: skip
    train(optimizer, model, batches(transport.rank, transport.world_size), after=lambda _: step.append(1))


def uneven_batches(transport):
    model = net()
    optimizer, worker, n = begin(transport, "param_server", model)
    x, y = dataset().tensors
    parts = range(worker, 20, n)
    given = ((x[3 * i : 3 * i + 1 + worker], y[3 * i : 3 * i + 1 + worker]) for i in list(parts)[:4])
    train(optimizer, model, given)


def averaged_copy_on_rank_0(transport):
    model, shadow = net(), net()
    optimizer, worker, n = begin(transport, "sharded_ring", model)
    schedule = StepLR(optimizer, 3)

    @torch.no_grad()
    def average(loss):
        schedule.step()
        for mean, p in zip(shadow.parameters(), model.parameters(), strict=True):
            if transport.rank == 0:
                mean.lerp_(p, 0.1)

    train(optimizer, model, batches(worker, n), after=average)


def weights_kept_small_on_all_ranks(transport):
    model = net()
    optimizer, worker, n = begin(transport, "ring_all_reduce", model)

    @torch.no_grad()
    def keep_small(loss):
        for p in model.parameters():
            p.clamp_(-0.2, 0.2)

    train(optimizer, model, batches(worker, n), after=keep_small)


def running_means_and_validation(transport):
    model = net().insert(1, nn.BatchNorm1d(8))
    optimizer, worker, n = begin(transport, "gossip", model)

    def validate(loss):
        if transport.rank == 0:
            model.eval()
            x, y = dataset().tensors
            with torch.no_grad():
                F.cross_entropy(model(x), y)
            model.train()

    train(optimizer, model, batches(worker, n), after=validate)


def accumulated(transport):
    model = net()
    optimizer, worker, n = begin(transport, "overlapped_ring", model)
    for i, (x, y) in enumerate(batches(worker, n, epochs=1, size=2)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if i % 2:
            optimizer.step(4)
    optimizer.finish()


def frozen_and_continued(transport):
    model = net()
    model[0].requires_grad_(False)
    optimizer, worker, n = begin(transport, "ring_all_reduce", model)
    given = list(batches(worker, n))
    train(optimizer, model, iter(given[:3]))
    best = deepcopy(model.state_dict())
    train(optimizer, model, iter(given[3:]))
    model.load_state_dict(best)


def independent(transport):
    model = net()
    optimizer, _worker, _ = begin(transport, "none", model, partial(torch.optim.SGD, lr=0.1 * (1 + transport.rank)))
    train(optimizer, model, batches(0, 1))


def slower_by_rank(transport):
    model = net()
    rate = partial(torch.optim.SGD, lr=0.1 / (1 + transport.rank))
    optimizer, worker, n = begin(transport, "ad_psgd", model, rate)
    train(optimizer, model, batches(worker, n))


if __name__ == "__main__":
    for work in (
        clipped_before_local_steps, clipped_by_a_strategy, uneven_batches, averaged_copy_on_rank_0,
        weights_kept_small_on_all_ranks, running_means_and_validation, accumulated, frozen_and_continued, independent,
        slower_by_rank,
    ):  # fmt: skip
        launch(work, int(os.environ["WORLD_SIZE"]))
