"""Every codec once more, as a plain program: a few lines of numpy or torch, and of the codec nothing but its options.

`NAME.py` has `plain_program(run, options)`, which returns the tensors that the receiver applies in each step, and may
have OPTIONS, for each run those of the codec. A codec outside the table has the function in its own module.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

Step = list[torch.Tensor]
Program = Callable[..., list[Step]]


@dataclass(frozen=True)
class PlainRun:
    """What a plain program is given: the gradients of one worker, tensor by tensor; each step is an epoch."""

    steps: list[Step]
    seed: int = 7
    rank: int = 2
    workers: int = 4
    momentum: float = 0.6
