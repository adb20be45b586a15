"""Gradient Dropping: only the largest elements are sent; the others are kept and added to the next gradient.

Each worker keeps a residual r, at first 0. A step adds the gradient, r <- r + g, sends top_R(r), the R n elements of
largest magnitude, and clears them in r. So nothing is lost, only late. Aji, Heafield, 2017, Sparse communication for
distributed gradient descent, arXiv 1704.05021, algorithm 1.

Three things differ from the paper. There R is the share that is dropped; here it is the share that is sent. There the
threshold is estimated from a sample, as with `sampled` here; else exactly R n elements are sent. There the server drops
as well; this is the worker's side.
Kept elements are sent late, and late gradients act like momentum: --momentum is 0.5 by default, by the grid in
`benchmarks/codec_defaults.py`. At first, while the kept elements grow, it learns more slowly than without a codec.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from gradwire.compression.base import Code, ErrorFeedback, check_finite
from gradwire.compression.sparse import NOTHING, Sparse


@dataclass(kw_only=True)
class TopK(ErrorFeedback, Sparse):
    """Sends the elements of largest magnitude, and adds the others to the next vector (Gradient Dropping)."""

    defaults = {"momentum": 0.5}
    state = ("r",)

    def setup(self) -> None:
        """r <- 0."""
        super().setup()
        self.r = self.kept(NOTHING)

    @override
    def encode(self, vector: torch.Tensor) -> Code:
        check_finite(vector, self.layout)
        self.plus_error(vector, self.r, out=self.r)  # r <- beta r + g
        code, _ = self.send(self.r)  # top_R(r); r <- r - top_R(r)
        return code
