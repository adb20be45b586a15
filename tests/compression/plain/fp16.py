"""The nearest number of numpy's float16."""

import numpy as np
import torch

from gradwire.compression import Codec
from tests.compression.plain import PlainRun, Step


def plain_program(run: PlainRun, options: Codec) -> list[Step]:
    """Round g."""
    return [[torch.from_numpy(g.numpy().astype(np.float16)).double() for g in gradients] for gradients in run.steps]
