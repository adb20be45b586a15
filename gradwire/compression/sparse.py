"""The base of codecs that send the largest elements of a vector, with their indices, and keep the rest."""

import math
from abc import ABC
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import torch
from typing_extensions import override

from gradwire.compression.base import GATHERED, Code, Codec, check_finite, index_dtype, pack, unpack
from gradwire.compression.selection import above, top
from gradwire.core.records.errors import RunFailed, UsageError

NOTHING = -0.0  # the kept value of an element that was sent: -0.0 + g is g bit for bit, also where g is -0.0
HALF_MAX = 65504.0  # the largest float16


@cache
def share_of(n: int, R: float) -> int:
    """Return how many of the n elements of a part are sent at density R: at least one."""
    return min(n, max(1, math.floor(n * Fraction(str(R)))))  # R as it is written, not as it is in binary


def check_density(density: float) -> None:
    """Check that 0 < R <= 1. Raises UsageError."""
    if not 0 < density <= 1:
        raise UsageError(f"--density {density}: must be above 0 and at most 1")


@dataclass(kw_only=True)
class Sparse(Codec, ABC):
    """Sends the largest elements of each part of what is kept."""

    density: float = 0.01
    """The share R of the elements that is sent, of each part at least one."""
    sampled: bool = False
    """Send all above a threshold that is estimated from a sample: between R / 2 and 2 R of the elements."""
    half_values: bool = False
    """Send values as float16; what the rounding loses is kept."""

    kind = GATHERED
    values = "w max(1, floor(n density))"  # 2 in place of w with half_values
    indices = "i max(1, floor(n density))"

    def __post_init__(self) -> None:
        """With a sampled threshold the length depends on the elements."""
        vars(self).update(exact_size=not self.sampled, on_meta=not self.sampled)

    @override
    def check(self) -> None:
        check_density(self.density)

    def setup(self) -> None:
        """Choose what travels."""
        self.sent_dtype = torch.float16 if self.half_values else self.dtype
        self.index_dtype = index_dtype(self.layout.n)

    @property
    def share(self) -> float:
        """The R in force."""
        return self.density

    @property
    def shares(self) -> tuple[float, ...]:
        """All that R may be."""
        return (self.density,)

    def count(self) -> tuple[float, float, float]:
        """See Codec; at the R in force."""
        k = sum(share_of(n, self.share) for n in self.parts.sizes)
        return k * self.sent_dtype.itemsize, k * self.index_dtype.itemsize, 0.0

    def send(self, r: torch.Tensor) -> tuple[Code, torch.Tensor]:
        """Take top_R(r) out of r, of each part; return the code, and the indices of its elements.

        Law: the old r equals the new r plus the code. Raises RunFailed if an element of it is not finite.
        """
        find = above if self.sampled else top
        found = [torch.arange(0, device=r.device)]
        for where, n in zip(self.parts.slices, self.parts.sizes, strict=True):
            found.append(find(r[where], share_of(n, self.share)).add_(where.start))
        indices = torch.cat(found)
        values = sent = r.index_select(0, indices)
        check_finite(values, self.layout, indices)
        r.index_fill_(0, indices, NOTHING)
        if self.half_values:
            sent = values.clamp(-HALF_MAX, HALF_MAX).half()
            r.index_copy_(0, indices, values - sent)
        short = indices.to(self.index_dtype)
        return Code(pack(sent, short), indices=short.nbytes), indices

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the vector of a code. Raises RunFailed unless the indices are those of elements."""
        indices, values = self.read(data)
        return (self.empty() if out is None else out).zero_().index_copy_(0, indices, values)

    def add(self, data: torch.Tensor, out: torch.Tensor, alpha: float = 1.0) -> None:
        """Add `alpha` times the vector of a code to `out` [n], where the code has elements. Raises RunFailed."""
        out.index_add_(0, *self.read(data), alpha=alpha)

    def read(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the indices, as int64, and the values of a code. Raises RunFailed if an index is out of range."""
        n = self.sent(data.nbytes)
        values, short = unpack(data, (n, self.sent_dtype), (n, self.index_dtype))
        if len(short) and not short.is_meta:
            for index in map(int, short.aminmax()):
                if not 0 <= index < self.layout.n:
                    raise RunFailed(
                        f"a code has the index {index}, and the vector has {self.layout.n} elements: sent by another "
                        "codec"
                    )
        return short.long(), values.to(self.dtype)

    def sent(self, nbytes: int) -> int:
        """Return how many elements a code of these bytes has; or how many it should have, if it cannot have as many."""
        n = nbytes // (self.sent_dtype.itemsize + self.index_dtype.itemsize)
        expected = 0
        for R in self.shares:
            ks = [share_of(part, R) for part in self.parts.sizes]
            expected = sum(ks)
            if n == expected or (self.sampled and sum((k + 1) // 2 for k in ks) <= n <= 2 * expected):
                return n
        return expected
