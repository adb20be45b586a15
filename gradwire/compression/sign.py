"""Sign SGD with error feedback: one bit an element, and one number a tensor.

    p = g + e                           the vector and the kept error
    sent = (||p||_1 / d) sign(p)
    e = p - sent

Algorithm 1 of Karimireddy, Rebjock, Stich, Jaggi, 2019, Error feedback fixes signSGD and other gradient compression
schemes, arXiv 1901.09847. There p holds the learning rate, p = gamma g + e; here the optimizer multiplies by it later.

The algorithm has no momentum. The kept error acts like some, so the default of --momentum is 0.5: see the grid in
`benchmarks/codec_defaults.py`.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from gradwire.compression.base import GATHERED, Code, ErrorFeedback, check_finite, pack, unpack
from gradwire.core.strategy.layout import Layout


@dataclass(kw_only=True)
class Sign(ErrorFeedback):
    """Sends the sign of every element, one bit, and the mean of their absolute values; the error is added to the next.

    Zero counts as plus.
    """

    kind = GATHERED
    state = ("e",)
    defaults = {"momentum": 0.5}
    values = "ceil(n / 8)"
    headers = "w"

    def setup(self) -> None:
        """Keep nothing yet: e = 0."""
        self.coded = [where for where in self.parts.slices if where.stop > where.start]
        self.scales = Layout(self.parts.names, tuple((min(n, 1),) for n in self.parts.sizes))  # one a part
        self.e = self.kept()

    @override
    def encode(self, vector: torch.Tensor) -> Code:
        check_finite(vector, self.layout)
        p = self.plus_error(vector, self.e)
        if not self.coded:
            return Code(p)
        scale = torch.stack([p[where].abs().mean() for where in self.coded])  # ||p||_1 / d
        check_finite(scale, self.scales)
        plus = p >= 0
        signs = torch.cat([pack_bits(plus[where]) for where in self.coded])
        data = pack(scale, signs)
        self.e = p.sub_(self.decode(data))
        return Code(data, headers=scale.nbytes)

    @override
    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        lengths = [-(-(where.stop - where.start) // 8) for where in self.coded]
        scale, signs = unpack(data, (len(self.coded), self.dtype), (sum(lengths), torch.uint8))
        out = self.empty() if out is None else out
        for where, m, packed in zip(self.coded, scale, signs.split(lengths), strict=True):
            plus = unpack_bits(packed, where.stop - where.start)
            torch.where(plus.bool(), m, -m, out=out[where])
        return out


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Return the `bits` [n], of 0 and 1, as m = ceil(n / 8) bytes: bit j of byte i is number i + j m."""
    m = -(-len(bits) // 8)
    rows = torch.nn.functional.pad(bits.to(torch.uint8), (0, 8 * m - len(bits))).view(8, m)
    packed = rows[7].clone()
    for j in range(6, -1, -1):
        packed.mul_(2).add_(rows[j])
    return packed


def unpack_bits(packed: torch.Tensor, n: int) -> torch.Tensor:
    """Return the `n` bits that were packed, as bytes of 0 and 1."""
    return torch.stack([(packed >> j).bitwise_and_(1) for j in range(8)]).flatten()[:n]
