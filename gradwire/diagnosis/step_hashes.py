"""Hashes of a script: of the steps of a rank's first optimizer, which `gradwire.diagnosis.why` compares.

A step hashes the parameters before it and their gradients, and as its batch the inputs of modules that were called from
outside of any since the step before, if no gradient is computed of them. Of a sharded parameter, a rank has its part.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from gradwire.core.strategy.layout import Layout
from gradwire.diagnosis.hashes import Arrays, Hashes


class StepHashes:
    """Those of one rank."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # by the id of a parameter
        self._modules: set[nn.Module] = set()
        self._inputs: list[torch.Tensor] = []
        self._parameters: list[torch.Tensor] = []
        self._hashes: Hashes | None = None
        self._steps = 0

    def call(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        """Note the inputs of a module that is called from outside of any."""
        if module not in self._modules:
            self._modules.add(module)
            self._names |= {id(p): name for name, p in module.named_parameters()}
        self._inputs += [x.detach().clone() for x in inputs if isinstance(x, torch.Tensor) and not x.requires_grad]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Hash what the optimizer begins its step with."""
        if self._hashes is None:
            given = [p for group in optimizer.param_groups for p in group["params"]]
            self._parameters = [p for p in given if _own(p).numel()]
            named = [(self._names.get(id(p), f"parameter {i}"), _own(p)) for i, p in enumerate(self._parameters)]
            self._hashes = Hashes(Layout.of(named))
        self._hashes.batch(*map(_own, self._inputs))
        self._inputs.clear()
        gradients = [None if p.grad is None else _own(p.grad) for p in self._parameters]
        self._hashes.gradient(self._steps, [_own(p) for p in self._parameters], gradients, 1)
        self._steps += 1

    def end(self) -> Arrays | None:
        """Return all hashes; None: there was no step."""
        if self._hashes is None:
            return None
        self._hashes.end([_own(p) for p in self._parameters])
        return self._hashes.arrays()


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank has."""
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.detach().to_dense() if own.is_sparse else own.detach()
