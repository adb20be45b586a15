"""The loss and the scores of a batch: classification, tasks that wings add, or a function of the user's.

`--task yourmodule:function` is called as function(model, x, y) for one batch. It returns the mean loss, or (loss, n),
or (loss, n, scores): `n` is the number of what loss and scores are means of, by default len(x); `scores` has numbers by
name. In evaluation it is called without gradients, the model being in evaluation mode, and means are weighted with n.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwire.core.records.errors import UsageError, unknown
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.lookup import blamed_on, import_user_object

_EXPECTED = "return loss, (loss, n) or (loss, n, {'score': number})"
_TAKEN = ("loss", "epoch", "step", "seconds", "bytes", "checkpoint", "id")  # columns of tables and pictures


class Outcome(NamedTuple):
    """The loss and the scores of a batch, means over `n`."""

    loss: Tensor
    n: int
    scores: Mapping[str, float] = {}


Sums = tuple[float, int, Mapping[str, float]]  # as an Outcome, but sums


@dataclass(frozen=True)
class Task:
    """The loss and the scores of a batch; `unit`: the loss is a mean over these."""

    name: str  # as --task has it
    unit: str
    function: Callable[[nn.Module, Tensor, Tensor], Any]
    sums_of: Callable[[nn.Module, Tensor, Tensor], Sums] | None = None  # in evaluation; None: of what `function` gives
    of_loss: Callable[[float], Mapping[str, float]] = lambda loss: {}  # scores that follow from the mean loss
    better: Mapping[str, str] = field(default_factory=dict)  # "higher" or "lower", by score, where it is known
    unrecorded: tuple[str, ...] = ()  # scores that only evaluate.py shows

    @property
    def n_varies(self) -> bool:
        """Whether n may be another number than the samples times a constant."""
        return self.name != CLASSIFICATION

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Outcome:
        """Return the mean loss of a batch, its n and scores. Raises UsageError if they are not such."""
        found = self.function(model, x, y)
        parts: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
        if not 1 <= len(parts) <= 3:
            raise self._refused(f"returned {len(parts)} things")
        defaults: tuple[Any, ...] = (None, len(x), {})
        loss, n, scores = parts + defaults[len(parts) :]
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()):
            raise self._refused(f"gave {described(loss)} as loss, which must be a tensor of one floating-point number")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise self._refused("gave a loss without gradient; compute it of what the model returns")
        try:
            n = index(n)
        except TypeError:
            raise self._refused(f"gave {described(n)} as n, which must be an integer") from None
        if n < 1:
            raise UsageError(
                f"--task {self.name}: gave n = {n} for {len(x)} samples, which have nothing to learn from; leave such "
                "samples out, or take a larger --batch_size"
            )
        return Outcome(loss.reshape(()), n, self._checked(scores))

    def _checked(self, scores: Any) -> Mapping[str, float]:
        if not isinstance(scores, Mapping):
            raise self._refused(f"gave {described(scores)} as scores, which must be a dictionary")
        for name, value in scores.items():
            if not (isinstance(name, str) and name.isidentifier() and name not in _TAKEN):
                taken = ", ".join(_TAKEN)
                raise self._refused(f"gave a score the name {name!r}; take one as of a variable, other than {taken}")
            if not (isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)):
                raise self._refused(f"gave {described(value)} as score {name}, which must be one number")
        return {name: float(value) for name, value in scores.items()}

    def _refused(self, what: str) -> UsageError:
        return UsageError(f"--task {self.name}: {what}; {_EXPECTED}")

    def sums(self, model: nn.Module, x: Tensor, y: Tensor) -> Sums:
        """Return the sums of loss and scores over a batch, and its n."""
        if self.sums_of:
            return self.sums_of(model, x, y)
        loss, n, scores = self(model, x, y)
        return loss.item() * n, n, {name: value * n for name, value in scores.items()}


def described(value: object) -> str:
    """Return the type of a value, and of a tensor its shape and numbers, for a message."""
    shape = f" {tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else ""
    return f"a {type(value).__name__}{shape}"


def _classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _classified(model: nn.Module, x: Tensor, y: Tensor) -> Sums:
    """Count whose class was the likeliest (accuracy) or among the five likeliest (top5)."""
    output = model(x)
    right = output.topk(min(5, output.shape[1])).indices == y[:, None]
    loss = F.cross_entropy(output, y, reduction="sum").item()
    return loss, len(y), {"accuracy": int(right[:, 0].sum()), "top5": int(right.any(1).sum())}


CLASSIFICATION = "classification"
TASKS = {
    CLASSIFICATION: Task(
        CLASSIFICATION, "samples", _classify, _classified, better={"accuracy": "higher"}, unrecorded=("top5",)
    ),
}
"""The tasks by name, besides yourmodule:function; wings add theirs."""


def find(name: str) -> Task:
    """Return the task of this name, or that of yourmodule:function. Raises UsageError."""
    if name in TASKS:
        return TASKS[name]
    if ":" not in name:
        raise unknown("--task", name, TASKS, "yourmodule:function")
    function = import_user_object("--task", name)
    if not callable(function):
        raise UsageError(f"--task {name}: is no function; define it as function(model, x, y)")
    return Task(name, "its n", function)


def first_of(n: int) -> torch.Tensor:
    """Return the first samples of `n`, on which a task is tried: two, if there are."""
    return torch.arange(min(2, n))


def check(task: Task, model: nn.Module, model_name: str, data: Data, dtype: torch.dtype) -> int:
    """Call the task on two samples of each split, as in training and as in evaluation.

    Return how many terms of the loss a sample has, as far as these samples show. Raises UsageError.
    """
    model.eval()
    first = first_of(data.n_train)
    x, y = data.fetch(first, dtype=dtype)
    with blamed_on(f"--task {task.name}: with --model {model_name}, on x {described(x)} and y {described(y)}, it"):
        loss, n, _ = task(model, x, y)
        with torch.no_grad():
            task.sums(model, *data.fetch(first_of(data.n_test), "test", dtype=dtype))
    if not torch.isfinite(loss):
        raise UsageError(
            f"--task {task.name}: its loss of the first samples is {loss.item()}; {_EXPECTED}, the loss being finite"
        )
    return max(1, round(n / len(first)))
