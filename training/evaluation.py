"""Scores of a model on the held-out set."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from workloads.datasets import Data

_BATCH = 512


@dataclass(frozen=True)
class Score:
    """The mean loss, and the share of samples whose class was the likeliest (top 1) or among the five likeliest."""

    loss: float
    top1: float
    top5: float


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, device: torch.device, dtype: torch.dtype) -> Score:
    """Return the score of `model`, in evaluation mode, on the held-out set."""
    model.eval()
    loss, top1, top5 = 0.0, 0, 0
    for indices in torch.arange(data.n_test).split(_BATCH):
        x, y = data.fetch(indices, "test", device, dtype)
        output = model(x)
        loss += F.cross_entropy(output, y, reduction="sum").item()
        right = output.topk(min(5, output.shape[1])).indices == y[:, None]
        top1 += int(right[:, 0].sum())
        top5 += int(right.any(1).sum())
    return Score(loss / data.n_test, top1 / data.n_test, top5 / data.n_test)
