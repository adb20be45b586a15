"""GRADWIRE_HASHES=1: hashes of a script's steps, as `simulate.py --script FILE --hashes` keeps them."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradwire.diagnosis.hashes import Arrays
from gradwire.diagnosis.step_hashes import StepHashes


class ScriptHashes:
    """Hashes what the first optimizer of this process begins its steps with, from now on until `end`."""

    def __init__(self) -> None:
        self._hashes = StepHashes()
        self._optimizer: torch.optim.Optimizer | None = None
        self._depth = 0  # modules that are being called
        self._hooks = (
            register_module_forward_pre_hook(self._call),
            register_module_forward_hook(self._return, always_call=True),
            register_optimizer_step_pre_hook(self._step),
        )

    def _call(self, module: nn.Module, inputs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._hashes.call(module, inputs)

    def _return(self, *_: Any) -> None:
        self._depth -= 1

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        if self._optimizer is optimizer:
            with torch.no_grad():
                self._hashes.step(optimizer)

    def end(self) -> Arrays | None:
        """Return all hashes; None: there was no step."""
        for hook in self._hooks:
            hook.remove()
        with torch.no_grad():
            return self._hashes.end()
