"""Pushes and fetches in the order in which the server took them."""

from collections.abc import Callable, Generator

import pytest
import torch

from strategies import Downpour
from tests.strategies.plain import PlainRun, Trajectories

OPTIONS = [
    {},
    {"n_push": 2, "n_fetch": 3},
    {"n_push": 2, "n_fetch": 2, "outer_lr": 0.6, "outer_momentum": 0.5},
    {"outer_lr": 0.6, "outer_momentum": 0.5, "momentum_every": 3},
]
Request = tuple[torch.Tensor, int] | None  # to push a movement and its samples; or to fetch x
Worker = Generator[Request, tuple[torch.Tensor, bool], None]


def serve(
    run: PlainRun,
    work: Callable[[int, list[torch.Tensor]], Worker],
    add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Trajectories:
    """Serve `work(k, seen)` of each worker, which yields its requests, and gets x and whether that is the last.

    x <- add(x, d) at a push. When the run has its samples, a fetch is answered after all have come.
    """
    seen: list[list[torch.Tensor]] = [[] for _ in run.workers]
    works = [work(k, seen[k]) for k in run.workers]
    requests, last, x, samples = [next(it) for it in works], list[int](), run.x, 0
    for k, tag in run.received("push", "fetch"):
        assert (requests[k] is None) == (tag == "fetch")
        if pushed := requests[k]:
            x, samples = add(x, pushed[0]), samples + pushed[1]
        elif samples >= run.samples:
            last.append(k)
            continue
        requests[k] = works[k].send((x, False))
    assert sorted(last) == list(run.workers)
    for k in last:
        with pytest.raises(StopIteration):
            works[k].send((x, True))
    return [torch.stack(own) for own in seen]


def plain_program(run: PlainRun, options: Downpour) -> Trajectories:
    """d_k is what worker k has moved since its last push; the server adds it, with delayed Nesterov momentum."""
    eta, beta, M = options.outer_lr, options.outer_momentum, options.momentum_every
    pushes: list[torch.Tensor] = []
    m = torch.zeros_like(run.x)

    def work(k: int, seen: list[torch.Tensor]) -> Worker:
        x, d, n, i, is_last = run.x, torch.zeros_like(run.x), 0, 0, False
        while not is_last:
            step = -run.lr * run.gradient(x, i, k)
            x, d, n, i = x + step, d + step, n + run.n(i, k), i + 1
            if i % options.n_push == 0:
                yield d, n
                d, n = torch.zeros_like(d), 0
            if i % options.n_fetch == 0:
                x, is_last = yield None
            seen.append(x)

    def add(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        nonlocal m
        pushes.append(d)
        x = x + eta * d / M
        if len(pushes) % M == 0:
            m = beta * m + torch.stack(pushes[-M:]).mean(0)
            x = x + eta * beta * m
        return x

    return serve(run, work, add)
