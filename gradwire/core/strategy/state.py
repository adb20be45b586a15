"""What belongs to a rank's state beside the model and its optimizer: tensors, and objects that have a state."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Stateful(Protocol):
    """What saves and restores itself."""

    def state_dict(self) -> Mapping[Any, Any]:
        """Return its state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Continue from a `state_dict`."""


Kept = torch.Tensor | Stateful


@dataclass(frozen=True)
class StateEntry:
    """One of them; `saved`: checkpoints hold it; `counted`: its memory is counted."""

    thing: Kept
    saved: bool
    counted: bool

    def state(self) -> Any:
        """Return a copy of its state."""
        return (
            self.thing.detach().clone() if isinstance(self.thing, torch.Tensor) else deepcopy(self.thing.state_dict())
        )

    def load(self, state: Any) -> None:
        """Continue from what `state` returned."""
        if isinstance(self.thing, torch.Tensor):
            self.thing.detach().copy_(state)
        else:
            self.thing.load_state_dict(deepcopy(state))

    @property
    def nbytes(self) -> int:
        """Its memory; of an optimizer, the memory of its state."""
        if isinstance(self.thing, torch.optim.Optimizer):
            return nbytes_of(self.thing)
        return int(getattr(self.thing, "nbytes", 0))


def nbytes_of(optimizer: torch.optim.Optimizer) -> int:
    """Return the memory of an optimizer's state, such as momentum; of a DTensor, that of this rank's part."""
    tensors = (value for state in optimizer.state.values() for value in state.values())
    parts = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
