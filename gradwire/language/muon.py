"""Muon for the matrices of hidden layers, and AdamW for the rest, as one optimizer."""

import inspect
from functools import partial
from typing import Any

import torch
from typing_extensions import override

from gradwire.core.strategy.factories import ByTensor, without_compiler
from gradwire.core.strategy.layout import Layout
from gradwire.core.training.optimizers import Make, factory, parameter_groups


def muon_and_adamw(arguments: dict[str, Any], lr: float, momentum: float, weight_decay: float, decay: str) -> ByTensor:
    """Return what makes the two, Muon with these arguments; one lr and weight decay are for both."""
    muon = partial(without_compiler(torch.optim.Muon), **{"adjust_lr_fn": "match_rms_adamw"} | arguments)
    adamw = factory("adamw", lr, momentum, weight_decay, ())
    return ByTensor(partial(_with_adamw, muon, adamw, decay), "muon")


def _with_adamw(
    muon: Make, adamw: Make, decay: str, layout: Layout, parameters: list[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Return Muon for matrices, and AdamW for the rest, and for embeddings, as is usual.

    (Jordan et al., 2024, Muon: an optimizer for hidden layers in neural networks; they except the output layer too.)
    """
    named = list(zip(layout.names, parameters, strict=True))
    hidden = [p for name, p in named if p.dim() == 2 and name not in layout.tables]
    others = [p for name, p in named if p.dim() != 2 or name in layout.tables]
    joined: Any = without_compiler(Joined)
    return joined(muon([{"params": hidden}]), adamw(parameter_groups(others, decay)))


class Joined(torch.optim.Optimizer):
    """Optimizers of some of the parameters each, as one: its groups and its state are those of all."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give each part its groups and the state, as they are here."""
        start = 0
        for part in self.parts:
            stop = start + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[start:stop], self.state
            start = stop

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Let each take its step."""
        for part in self.parts:
            part.step()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        inspect.unwrap(torch.optim.Optimizer.load_state_dict)(self, state_dict)
        self._share()
