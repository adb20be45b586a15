"""Half precision: every element rounded to float16, as torch rounds. Half the bytes, and 65504 is the largest."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from typing_extensions import override

from gradwire.compression.base import DENSE, ROUNDED, Code, Codec, check_finite, unpack


@dataclass(kw_only=True)
class Float16(Codec):
    """Rounds every element to float16: 11 bits of precision, up to 65504."""

    kind = DENSE
    law = ROUNDED
    values = "2 n"
    rounded: ClassVar[torch.dtype] = torch.float16

    def encode(self, vector: torch.Tensor) -> Code:
        """Round to float16; an element that rounds to more than its largest number is not finite."""
        data = vector.to(self.rounded)
        check_finite(data, self.layout)
        return Code(data)

    @override
    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        (rounded,) = unpack(data, (self.layout.n, self.rounded))
        return (self.empty() if out is None else out).copy_(rounded)
