"""Lab 14, solved: GPipe, 1F1B and its interleaved form, and a step of any of them."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from lessons.bubble import Pass, Pipe


def gpipe(rank: int, p: int, m: int) -> list[Pass]:
    """Return the passes of a rank of p, with one stage each and m micro-batches: all forward, then all backward."""
    return [Pass(kind, i) for kind in "FB" for i in range(m)]


def one_f_one_b(rank: int, p: int, m: int) -> list[Pass]:
    """Return the passes of a rank: as few forward ones first as fill the pipeline, then one forward, one backward."""
    forward, backward = ([Pass(kind, i) for i in range(m)] for kind in "FB")
    return _alternate(forward, backward, p - rank - 1)


def interleaved(rank: int, p: int, m: int, v: int) -> list[Pass]:
    """Return the passes of a rank with v stages, one forward, one backward; p divides m."""
    cells = [(group + i, chunk) for group in range(0, m, p) for chunk in range(v) for i in range(p)]
    forward = [Pass("F", i, chunk) for i, chunk in cells]
    backward = [Pass("B", i, v - 1 - chunk) for i, chunk in cells]
    return _alternate(forward, backward, 2 * (p - rank - 1) + (v - 1) * p)


def _alternate(forward: list[Pass], backward: list[Pass], ahead: int) -> list[Pass]:
    """Return `ahead` forward passes, or all, then one forward, one backward, then the backward ones that are left."""
    passes = forward[:ahead]
    for i, pass_ in enumerate(backward):
        passes += [*forward[ahead + i : ahead + i + 1], pass_]
    return passes


def step(order: Sequence[Pass], pipe: Pipe) -> None:
    """Make the passes of this rank in their order, and send what other ranks need for theirs."""
    p, last = pipe.p, pipe.p * pipe.v - 1
    sent: list[Any] = []
    for kind, i, chunk in order:
        stage, way = chunk * p + pipe.rank, 1 if kind == "F" else -1
        run, begin, end = (pipe.forward, 0, last) if kind == "F" else (pipe.backward, last, 0)
        given = None
        if stage != begin:
            dist.recv(given := pipe.new(), (pipe.rank - way) % p, tag=_tag(kind, i, stage, last))
        result = run(i, chunk, given)
        if stage != end:
            sent.append(dist.isend(result, (pipe.rank + way) % p, tag=_tag(kind, i, stage + way, last)))
    for work in sent:
        work.wait()


def _tag(kind: str, micro_batch: int, stage: int, last: int) -> int:
    return 2 * (micro_batch * (last + 1) + stage) + (kind == "F")
