"""Language modelling: each token is predicted from those before it."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.core.records.errors import UsageError
from gradwire.core.workloads.tasks import Task, described

LANGUAGE_MODEL = "language_model"
IGNORED = -100
"""The target of a token that is left out of the loss and not counted."""


def _predict_next(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.dim() != 2 or x.shape != y.shape or x.is_floating_point() or y.is_floating_point():
        raise UsageError(
            f"--task {LANGUAGE_MODEL}: x is {described(x)}, y {described(y)}; make both integers [samples, tokens]"
        )
    x, y = x.long(), y.long()
    if (x < 0).any() or ((y < 0) & (y != IGNORED)).any():
        raise UsageError(f"--task {LANGUAGE_MODEL}: a token is below 0; count from 0, only targets may be {IGNORED}")
    output = model(x)
    if not (isinstance(output, Tensor) and output.dim() == 3 and output.shape[:2] == y.shape):
        raise UsageError(
            f"--task {LANGUAGE_MODEL}: the model gave {described(output)} for x {tuple(x.shape)}; "
            "make it give [samples, tokens, vocabulary]"
        )
    return F.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=IGNORED), (y != IGNORED).sum()


def _of_mean_loss(loss: float) -> dict[str, float]:
    return {"bits_per_character": loss / math.log(2), "perplexity": math.exp(loss) if loss < 700 else math.inf}


TASK = Task(
    LANGUAGE_MODEL, "tokens", _predict_next, of_loss=_of_mean_loss,
    better={"bits_per_character": "lower", "perplexity": "lower"},
)  # fmt: skip
