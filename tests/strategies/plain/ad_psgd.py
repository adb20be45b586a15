"""Updates and exchanges in the order of their time."""

import torch

from strategies import ADPSGD
from tests.strategies.plain import PlainRun, Trajectories


def plain_program(run: PlainRun, options: ADPSGD) -> Trajectories:
    """An active rank averages with the answer that has come, and updates; a passive one averages what it keeps apart.

    A gradient is that of the parameters with which the step began.
    """
    x, apart = [run.x for _ in run.workers], [run.x for _ in run.workers]
    answers: dict[int, torch.Tensor] = {}  # to each active rank, from whom it has asked
    seen = [list[torch.Tensor]() for _ in run.workers]
    rows = run.events.query("(phase == 'update' and epoch == 1) or (op == 'recv' and tag == 'average')")
    for row in rows.sort_values("t1", kind="stable").itertuples():
        k, i = row.rank, row.peer
        if row.op == "recv":
            answers[i], apart[k] = apart[k], (apart[k] + x[i]) / 2
            continue
        g = run.gradient(x[k], len(seen[k]), k)
        mixed = apart[k] if k % 2 else (x[k] + answers.pop(k, x[k])) / 2
        x[k] = apart[k] = mixed - run.lr * g
        seen[k].append(x[k])
    return [torch.stack(own) for own in seen]
