"""Scores of a model on the held-out set."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


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
