"""Every codec once more, as a plain program: a few lines of numpy or torch, and of the codec nothing but its options.

`NAME.py` has `plain_program(run, options)`, which returns the tensors that the receiver applies in each step, and may
have OPTIONS, for each run those of the codec. A codec outside the table has the function in its own module.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

import torch

from gradwire.compression import CODECS, Codec

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


def plain_module(kind: type[Codec]) -> ModuleType | None:
    """Return the module that has the plain program of a codec; None if there is none."""
    if CODECS.get(kind.name) is not kind:
        own = sys.modules[kind.__module__]
        return own if hasattr(own, "plain_program") else None
    return importlib.import_module(f"{__name__}.{kind.name}") if find_spec(f"{__name__}.{kind.name}") else None
