"""Random-k: elements drawn at random are sent; the others are kept and added to the next gradient.

The draw depends on the seed and on the number of the vector alone. So both ends, and all ranks, draw the same elements:
no indices travel, and codes of several ranks can be added. A residual r is kept: r <- r + g, send the drawn elements of
r, clear them. That is rand_k with memory: Stich, Cordonnier, Jaggi, 2018, Sparsified SGD with memory, arXiv 1809.07599,
section 2 and algorithm 1.

The other form scales the sent elements by n / k and keeps nothing. Its mean is the gradient, at n / k times the
variance. This is not that form: elements are not scaled.

An element waits n / k steps on average before it is sent, whatever its size. Such late gradients act like momentum, and
with momentum 0.9 on top of it the training diverges below a density of 0.5. So the defaults are --momentum 0 and --lr
0.2, and the density is 10 %: the smallest of the grid in `benchmarks/codec_defaults.py` that learns everywhere.

The draw is numpy's, of k of n without replacement, from a generator of its own: where k is small it takes time for k
elements, not for n. (A torch.Generator on the CPU takes only 32 bits of a seed; seed and number are more.)
"""

from dataclasses import dataclass

import numpy as np
import torch
from typing_extensions import override

from gradwire.compression.base import DENSE, Code, ErrorFeedback, check_finite, unpack
from gradwire.compression.sparse import NOTHING, check_density, share_of


@dataclass(kw_only=True)
class RandomK(ErrorFeedback):
    """Sends elements drawn at random, the same on all ranks, and adds the others to the next vector."""

    density: float = 0.1
    """The share of the elements that is sent, of each tensor at least one."""

    kind = DENSE
    state = ("r", "encoded", "decoded")
    defaults = {"momentum": 0.0, "lr": 0.2}
    values = "w max(1, floor(n density))"

    @override
    def check(self) -> None:
        super().check()
        check_density(self.density)

    def setup(self) -> None:
        """r <- 0; count the vectors of each direction: an instance on a ring has both."""
        self.r = self.kept(NOTHING)
        self.encoded = self.decoded = 0
        self.latest: tuple[int, torch.Tensor] | None = None

    @override
    def encode(self, vector: torch.Tensor) -> Code:
        check_finite(vector, self.layout)
        indices = self.drawn(self.encoded)
        self.encoded += 1
        self.plus_error(vector, self.r, out=self.r)
        values = self.r.index_select(0, indices)
        check_finite(values, self.layout, indices)
        self.r.index_fill_(0, indices, NOTHING)
        return Code(values)

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode the codes in the order of their encoding: the first code is of the first vector, and so on."""
        indices = self.drawn(self.decoded)
        (values,) = unpack(data, (len(indices), self.dtype))
        self.decoded += 1
        return (self.empty() if out is None else out).zero_().index_copy_(0, indices, values)

    def drawn(self, number: int) -> torch.Tensor:
        """Return the ascending indices of the elements that vector number `number` sends."""
        if self.device.type == "meta":
            k = sum(share_of(n, self.density) for n in self.parts.sizes if n)
            return torch.empty(k, dtype=torch.int64, device="meta")
        if self.latest is None or self.latest[0] != number:
            random = np.random.default_rng([self.setting.seed % 2**64, number])
            parts = zip(self.parts.slices, self.parts.sizes, strict=True)
            draws = [
                where.start + np.sort(random.choice(n, share_of(n, self.density), replace=False, shuffle=False))
                for where, n in parts
                if n
            ]
            indices = np.concatenate([np.empty(0, np.int64), *draws])
            self.latest = number, torch.from_numpy(indices).to(self.device)
        return self.latest[1]
