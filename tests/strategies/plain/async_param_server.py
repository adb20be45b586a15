"""Gradients in the order in which the server took them, each of the version that its worker had read."""

import torch

from gradwire.core.records.tables import applied, dropped
from strategies import Strategy
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [{}, {"aggregate": 2}, {"max_staleness": 1}]


def plain_program(run: PlainRun, options: Strategy) -> Trajectories:
    """Each worker takes its own batches, one after the other."""
    return replay(run)


def replay(run: PlainRun, by_step: bool = False) -> Trajectories:
    """x of version v + 1 <- x of version v - eta the mean of the gradients that were applied to v.

    `by_step`: a worker takes the batch of the version that it has read, and not the next of its own.
    """
    x, first = [run.x], run.task.roles.index("worker")
    rows = run.events.loc[sorted([*applied(run.events).index, *dropped(run.events).index])]
    read: list[list[int]] = [[] for _ in run.workers]  # the versions that each worker has computed on
    for version, group in rows.groupby("version_applied"):
        g, n = torch.zeros_like(run.x), 0
        for op, rank, v in zip(group["op"], group["peer"], group["version_read"], strict=True):
            k = rank - first
            i = v if by_step else len(read[k])
            read[k].append(v)
            if op != "drop":
                g, n = g + run.n(i, k) * run.gradient(x[v], i, k), n + run.n(i, k)
        if n:
            assert len(x) == version + 1, "one update a version"
            x.append(x[-1] - run.lr * g / n)
    return [torch.stack([x[v] for v in [*own[1:], len(x) - 1]]) for own in read]
