"""The nearest number whose fraction has 8 bits."""

import numpy as np
import torch

from gradwire.compression import Codec
from tests.compression.plain import PlainRun, Step


def plain_program(run: PlainRun, options: Codec) -> list[Step]:
    """With g = m 2^e and 1/2 <= |m| < 1: round 2^8 m."""

    def rounded(g: torch.Tensor) -> torch.Tensor:
        m, e = np.frexp(g.numpy())
        return torch.from_numpy(np.asarray(np.ldexp(np.round(2**8 * m) / 2**8, e)))

    return [[rounded(g) for g in gradients] for gradients in run.steps]
