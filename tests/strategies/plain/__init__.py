"""Every strategy once more, as a plain program: a few lines of torch, and of the strategy nothing but its options.

`NAME.py` has `plain_program(run, options)`, which returns of each worker the x [n] after each of its steps, and may
have OPTIMIZER, one of `tests.strategies.loops.OPTIMIZERS`; OPTIONS, for each run those of the strategy; WORKERS, where
only so many make a run that can be told again. A strategy that waits, agrees, and steps by the mean gradient needs none
of its own: `mean.py` is its. One outside the table has the function in its own module.
"""

import importlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from tests.strategies.loops import Task, X, Y, make_model

Trajectories = list[torch.Tensor]
_model = cache(make_model)  # whose parameters are set before each use
Program = Callable[..., Trajectories]


@dataclass(frozen=True)
class PlainRun:
    """What a plain program is given: the model and the batches, and what of a run is decided by the order of arrival.

    `events` of all ranks, each in its order.
    """

    task: Task
    steps: int  # of each worker that waits for the others
    samples: int  # after which it ends, of those who do not wait
    events: pd.DataFrame
    lr: float = 0.3

    @property
    def x(self) -> torch.Tensor:
        """The x [n] with which all begin."""
        return torch.nn.utils.parameters_to_vector(make_model().parameters()).detach()

    @property
    def workers(self) -> range:
        """The workers, from 0 on."""
        return range(self.task.roles.count("worker"))

    def received(self, *tags: str) -> list[tuple[int, str]]:
        """Return the messages that a server took, in their order: the worker, and the tag."""
        rows = self.events.query("rank == 0 and op == 'recv' and tag in @tags")
        return [(rank - 1, tag) for rank, tag in zip(rows["peer"], rows["tag"], strict=True)]

    def n(self, i: int, k: int) -> int:
        """Return the samples of step i of worker k."""
        return len(self.task.batch(i, k))

    def gradient(self, x: torch.Tensor, i: int, k: int) -> torch.Tensor:
        """Return the mean gradient [n] at x of step i of worker k."""
        part, model = self.task.batch(i, k), _model()
        model.zero_grad()
        torch.nn.utils.vector_to_parameters(x, model.parameters())
        F.cross_entropy(model(X[part]), Y[part]).backward()
        return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def plain_module(kind: type[Any], is_of_table: bool, package: str = __name__, shared: str = "") -> ModuleType:
    """Return the module that has the plain program of a class: NAME, or `shared`, of the package, or its own module.

    One outside the table may have none: then the test is skipped, with a warning.
    """
    own = sys.modules[kind.__module__]
    if not is_of_table and hasattr(own, "plain_program"):
        return own
    for name in (kind.name if is_of_table else "", shared):
        if name and find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
    if is_of_table:
        where = f"{package.replace('.', '/')}/{kind.name}.py"
        pytest.fail(f"{kind.name} has no plain program: write plain_program(run, options) in {where}", pytrace=False)
    why = f"{kind.name} has no plain program, so a mistake may pass: write plain_program(run, options) beside it"
    warnings.warn(why, stacklevel=1)  # which is shown, unlike the reason of what is skipped
    pytest.skip(why)
