"""QSGD: every element rounded at random to one of a few levels, between which its mean is right.

A vector v is cut into buckets. Element i of a bucket is sent as ||v||_2 sgn(v_i) xi_i, where xi_i is one of the two
neighbours of |v_i| / ||v||_2 among 0, 1/s, 2/s, ..., 1: the upper one with the probability that makes the mean of xi_i
equal |v_i| / ||v||_2. So nothing needs to be kept. Section 3.1 of Alistarh, Grubic, Li, Tomioka, Vojnovic, 2017, QSGD:
communication-efficient SGD via gradient quantization and encoding, arXiv 1610.02132; buckets are of section 4.

The paper writes the levels by Elias's codes, of varying length; here each takes the same number of bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from gradwire.compression.base import GATHERED, UNBIASED, Code, Codec, check_finite, pack, unpack
from gradwire.compression.sign import pack_bits, unpack_bits
from gradwire.core.records.options import option
from gradwire.core.strategy.layout import Layout


@dataclass(kw_only=True)
class QSGD(Codec):
    """Rounds every element at random to one of `levels` parts of the norm of its bucket; the mean of it is the element.

    Levels of 7 take 4 bits an element, of 15 take 5, of 127 take 8.
    """

    levels: int = option(15, least=1, most=32767)
    """Levels s above zero, and as many below."""
    bucket: int = option(512, least=1)
    """Consecutive elements of a tensor that share a norm."""

    kind = GATHERED
    law = UNBIASED
    values = "ceil(n / 8) ceil(log2(2 levels + 1))"
    headers = "w ceil(n / bucket)"

    def setup(self) -> None:
        """Start the random numbers, which differ between ranks."""
        self.bits = (2 * self.levels).bit_length()  # of 0..2s
        self.coded = [where for where in self.parts.slices if where.stop > where.start]
        self.norms = Layout(self.parts.names, tuple((-(-n // self.bucket),) for n in self.parts.sizes))
        seed = np.random.SeedSequence([self.setting.seed % 2**64, self.setting.rank]).generate_state(1, np.uint64)
        self.random = torch.Generator().manual_seed(int(seed[0]))

    @override
    def encode(self, vector: torch.Tensor) -> Code:
        check_finite(vector, self.layout)
        coded = [self.quantize(vector[where]) for where in self.coded]
        if not coded:
            return Code(vector)
        norms = torch.cat([norm for norm, _ in coded])
        check_finite(norms / self.levels * self.levels, self.norms)  # the largest that is decoded
        return Code(pack(norms, torch.cat([levels for _, levels in coded])), headers=norms.nbytes)

    def quantize(self, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norms of the buckets of a part, and its levels packed."""
        n, d, s = len(v), min(self.bucket, len(v)), self.levels
        a = torch.nn.functional.pad(v, (0, -n % d)).view(-1, d)
        norm = torch.linalg.vector_norm(a, dim=1, keepdim=True, dtype=torch.float64).to(v.dtype)
        # From -s to s. What lies below zero is rounded between the same two neighbours with the same probabilities.
        a = torch.div(a, norm.masked_fill(norm == 0, 1)).mul_(s).flatten()[:n]
        level = a.floor()
        level.add_(a.sub_(level) > self.uniform(a))
        level = level.add_(s).clamp_(0, 2 * s).to(torch.uint8 if self.bits <= 8 else torch.int32)
        planes = [pack_bits((level >> j).bitwise_and_(1)) for j in range(self.bits)]
        return norm.flatten(), torch.cat(planes)

    def uniform(self, like: torch.Tensor) -> torch.Tensor:
        """Return random numbers from 0 up to 1."""
        if like.is_meta:
            return torch.empty_like(like)
        return torch.rand(len(like), generator=self.random, dtype=like.dtype).to(like.device)

    @override
    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        lengths = [self.bits * -(-(where.stop - where.start) // 8) for where in self.coded]
        norms, levels = unpack(data, (self.norms.n, self.dtype), (sum(lengths), torch.uint8))
        out = self.empty() if out is None else out
        parts = (where for where in self.norms.slices if where.stop > where.start)
        for where, which, packed in zip(self.coded, parts, levels.split(lengths), strict=True):
            n = where.stop - where.start
            d = min(self.bucket, n)
            level = torch.zeros(n, dtype=torch.uint8 if self.bits <= 8 else torch.int32, device=data.device)
            for j, plane in enumerate(packed.chunk(self.bits)):
                level.add_(unpack_bits(plane, n).to(level.dtype) << j)
            unit = (norms[which] / self.levels).repeat_interleave(d, output_size=-(-n // d) * d)[:n]
            torch.mul(level.to(self.dtype).sub_(self.levels), unit, out=out[where])
        return out

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.get_state()}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.random.set_state(state["random"])
