"""Several optimizers as one."""

import inspect
from typing import Any

import torch


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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See Optimizer."""
        inspect.unwrap(torch.optim.Optimizer.load_state_dict)(self, state_dict)
        self._share()
