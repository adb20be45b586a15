"""Scores of a model on the held-out set."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from strategies.common.replica import parameters_from
from transports.base import Transport
from transports.messages import PeerLost

REPORTER = 0  # evaluates the model, which is the same on every rank, and reports the progress; it must not die


@dataclass(frozen=True)
class Score:
    """The mean loss, and the share of samples whose class was the likeliest (top 1) or among the five likeliest."""

    loss: float
    top1: float
    top5: float


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Score:
    """Return the score of `model`, in evaluation mode, on the held-out set, which `batches` (x, y) give once."""
    model.eval()
    loss, top1, top5, n = 0.0, 0, 0, 0
    for x, y in batches:
        output = model(x)
        loss += F.cross_entropy(output, y, reduction="sum").item()
        right = output.topk(min(5, output.shape[1])).indices == y[:, None]
        top1 += int(right[:, 0].sum())
        top5 += int(right.any(1).sum())
        n += len(y)
    return Score(loss / n, top1 / n, top5 / n)


def evaluate_for_all(
    transport: Transport, model: nn.Module, x: torch.Tensor, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> Score | None:
    """Evaluate the model with the parameters `x` on the reporter while the others wait; None on them.

    However long it takes, even one batch: no wait times out as long as the reporter's process runs.
    """
    if transport.rank != REPORTER:
        while not transport.recv(REPORTER, "evaluated").object:
            pass
        return None
    with parameters_from(model, x), transport.while_busy(lambda: _tell_others(transport, False)):
        score = evaluate(model, batches)
    _tell_others(transport, True)
    return score


def _tell_others(transport: Transport, evaluated: bool) -> None:
    for peer in transport.peers:
        try:
            transport.isend(evaluated, peer, "evaluated")
        except PeerLost:
            continue  # whether the run can continue without it, others decide
