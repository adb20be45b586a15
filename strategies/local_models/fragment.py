"""A fragment of the model, and which fragments have all their gradients in a backward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradwire.core.records.errors import RunFailed


@dataclass(eq=False)
class Fragment:
    """Blocks that are sent together; if strided, one of those whose turn is the same."""

    tag: str
    offset: int  # o_p
    part: slice  # of x
    tensors: range  # the numbers of its parameters
    x: torch.Tensor
    x0: nn.Parameter
    sum: torch.Tensor  # of what all ranks send
    n: int = 0  # samples of this rank since it was sent last
    n_sent: int = 0  # of this rank, when it was sent last
    n_sum: int = 0  # of all ranks in a sum that is not used yet

    def state_dict(self) -> dict[str, int]:
        """Return the samples."""
        return {"n": self.n, "sent": self.n_sent, "all": self.n_sum}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take over the samples."""
        self.n, self.n_sent, self.n_sum = state["n"], state["sent"], state["all"]


class BackwardPass:
    """The gradients of one backward pass: each is of one fragment. `updated`: the fragments that were updated in it."""

    def __init__(self, of_tensor: Mapping[int, Fragment], names: Sequence[str]) -> None:
        self._of_tensor, self._names = of_tensor, names
        self._missing = set[int]()
        self.updated = set[Fragment]()

    def begin(self) -> None:
        """No gradient is complete."""
        self._missing = set(self._of_tensor)

    def complete(self, i: int) -> Fragment | None:
        """The gradient of parameter `i` is complete: return its fragment if all of its gradients are.

        Raises RunFailed if the fragment was updated without it.
        """
        fragment = self._of_tensor[i]
        if fragment in self.updated:
            raise RunFailed(f"a gradient of {self._names[i]} came after it was used; make one backward pass a step")
        self._missing.discard(i)
        return fragment if self._missing.isdisjoint(fragment.tensors) else None
