"""Deep Gradient Compression: the largest elements are sent, and the others accumulate with their momentum.

Each worker clips its gradient g to the norm C / sqrt(N), and keeps a velocity u and the unsent part v:

    u <- m u + g            momentum correction: v accumulates the velocity, not the gradient
    v <- v + u
    send top_R(v)           the R n elements of largest magnitude
    v, u <- 0 where sent    momentum factor masking: late momentum goes no further

In a warm-up of some epochs R goes down from 25 % to its value. The optimizer then takes the sum of the codes, and has
no momentum of its own. Lin, Han, Mao, Wang, Dally, 2018, Deep gradient compression: reducing the communication
bandwidth for distributed training, arXiv 1712.01887, sections 3.1 to 3.3.

The default of --momentum is 0.7: with 0.9 and the paper's R = 0.1 %, the default network loses up to 18 points of
accuracy (`benchmarks/codec_defaults.py`).

With R = 1 and masking this is SGD without momentum; without masking, SGD with momentum.
"""

import math
from dataclasses import dataclass

import torch

from gradwire.compression.base import FEEDBACK, Code, check_finite
from gradwire.compression.sparse import NOTHING, Sparse
from gradwire.core.records.options import option

WARM_UP = (0.25, 0.0625, 0.015625, 0.004)
"""R in the four quarters of the warm-up (section 3.3)."""


@dataclass(kw_only=True)
class DGC(Sparse):
    """Sends the largest elements of a sum of velocities, and keeps the others (Deep Gradient Compression)."""

    density: float = 0.001
    """The share R of the elements that is sent, of each part at least one, after the warm-up."""
    warmup_epochs: int = option(4, least=0)
    """Epochs, in four quarters, in which R is 25 %, 6.25 %, 1.5625 %, 0.4 %, if that is more; 0 for none."""
    local_clip: float = option(0.0, least=0)
    """Norm C for all workers' gradients together; each worker's is clipped to C / sqrt(N). 0 for no clipping."""
    masking: bool = True
    """Clear the velocity where elements are sent."""

    law = FEEDBACK
    carries_momentum = True
    defaults = {"momentum": 0.7}
    state = ("v", "u")

    def setup(self) -> None:
        """u, v <- 0."""
        super().setup()
        self.u = self.kept(NOTHING)
        self.v = self.kept(NOTHING)

    @property
    def share(self) -> float:
        """The R of this epoch."""
        if self.epoch > self.warmup_epochs:
            return self.density
        return max(self.density, WARM_UP[(self.epoch - 1) * len(WARM_UP) // self.warmup_epochs])

    @property
    def shares(self) -> tuple[float, ...]:
        """R of all epochs: the receiver does not know which it is."""
        return (*(max(self.density, R) for R in WARM_UP if self.warmup_epochs), self.density)

    def encode(self, vector: torch.Tensor) -> Code:
        """Encode v + u: the code plus the new v equals it; without momentum u is g."""
        check_finite(vector, self.layout)
        self.u.mul_(self.setting.momentum).add_(vector, alpha=self.clip(vector))  # u <- m u + g
        self.v.add_(self.u)  # v <- v + u
        code, indices = self.send(self.v)
        if self.masking:
            self.u.index_fill_(0, indices, NOTHING)
        return code

    def clip(self, g: torch.Tensor) -> float:
        """Return the factor that bounds the norm of g by C / sqrt(N)."""
        if not self.local_clip or g.is_meta:
            return 1.0
        limit = self.local_clip / math.sqrt(self.setting.workers)
        norm = float(torch.linalg.vector_norm(g, dtype=torch.float64))
        return limit / norm if norm > limit else 1.0
