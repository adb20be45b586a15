"""What the built-in ways have in common, put behind the interface of a strategy so that one loop runs them all."""

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from strategies.base import Strategy
from strategies.replica import copy_into


class Builtin(Strategy):
    """A way of torch's own: it works on the module, `original`, where the strategies work on its Replica."""

    original: nn.Module

    def trained(self) -> list[nn.Parameter]:
        """Return the trainable parameters."""
        return [p for p in self.original.parameters() if p.requires_grad]

    def buffers(self) -> list[torch.Tensor]:
        """Return the floating-point buffers."""
        return [b for b in self.original.buffers() if b.is_floating_point()]

    def parameters(self) -> torch.Tensor:
        """Return this rank's parameters [n]."""
        return parameters_to_vector(self.trained()).detach()

    def model(self) -> torch.Tensor:
        """Return the parameters [n]: those of any rank are the model."""
        return self.parameters()

    def state_dict(self) -> dict[str, Any]:
        """As the strategies': parameters x and buffers b as vectors."""
        b = torch.cat([b.reshape(-1) for b in self.buffers()]) if self.buffers() else torch.empty(0)
        return {
            "x": self.parameters(),
            "b": b,
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
            "processed": self.processed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        copy_into(self.trained(), state["x"])
        copy_into(self.buffers(), state["b"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples, self.processed = state["samples"], state["processed"]
