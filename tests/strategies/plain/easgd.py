"""Fetches of the centre, and pushes of the elastic difference, in the order in which the server took them."""

import torch

from strategies import ElasticAveraging
from tests.strategies.plain import PlainRun, Trajectories
from tests.strategies.plain.downpour import Worker, serve

OPTIONS = [{}, {"tau": 1}, {"tau": 3, "alpha": 0.5}]


def plain_program(run: PlainRun, options: ElasticAveraging) -> Trajectories:
    """d = alpha (x_k - x~);  x_k <- x_k - d;  x~ <- x~ + d."""
    alpha = options.alpha or 0.9 / len(run.workers)

    def work(k: int, seen: list[torch.Tensor]) -> Worker:
        x, n, i, is_last = run.x, 0, 0, False
        while not is_last:
            x, n, i = x - run.lr * run.gradient(x, i, k), n + run.n(i, k), i + 1
            if i % options.tau == 0:
                center, is_last = yield None
                if not is_last:
                    d = alpha * (x - center)
                    x = x - d
                    yield d, n
                    n = 0
            seen.append(x)

    return serve(run, work, torch.add)
