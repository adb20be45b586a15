"""Scores of a model on the held-out set."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.tensors import parameters_from
from gradwire.core.training.progress import REPORTER
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import PeerLost
from gradwire.core.workloads.tasks import Task


@dataclass(frozen=True)
class Score:
    """The mean loss, and the scores by name, over all terms of the task's loss."""

    loss: float
    scores: Mapping[str, float]


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
    """Return the score of `model`, in evaluation mode, on the held-out set, which `batches` (x, y) give once.

    Raises UsageError if the task scores other things of one batch than of another.
    """
    model.eval()
    loss, n = 0.0, 0
    sums: dict[str, float] = {}
    for x, y in batches:
        of_batch, n_of_batch, scores = task.sums(model, x, y)
        if n and scores.keys() != sums.keys():
            names = " and then ".join(", ".join(scored) or "nothing" for scored in (sums, scores))
            raise UsageError(f"--task {task.name}: scored {names}; give every batch the same scores")
        loss, n = loss + of_batch, n + n_of_batch
        sums = {name: sums.get(name, 0) + value for name, value in scores.items()}
    return Score(loss / n, {name: value / n for name, value in sums.items()} | dict(task.of_loss(loss / n)))


def evaluate_for_all(
    transport: Transport, task: Task, model: nn.Module, x: Tensor, batches: Iterable[tuple[Tensor, Tensor]]
) -> Score | None:
    """Evaluate the model with the parameters `x` on the reporter while the others wait; None on them.

    However long it takes, even one batch: no wait times out as long as the reporter's process runs.
    """
    if transport.rank != REPORTER:
        while not transport.recv(REPORTER, "evaluated").object:
            pass
        return None
    with parameters_from(model, x), transport.while_busy(lambda: _tell_others(transport, False)):
        score = evaluate(task, model, batches)
    _tell_others(transport, True)
    return score


def _tell_others(transport: Transport, evaluated: bool) -> None:
    for peer in transport.peers:
        with suppress(PeerLost):  # whether the run can continue without it, others decide
            transport.isend(evaluated, peer, "evaluated")
