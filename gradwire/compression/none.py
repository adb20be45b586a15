"""No compression: the vector itself is sent."""

from dataclasses import dataclass

import torch

from gradwire.compression.codec import LOSSLESS, Code, Codec
from gradwire.compression.packing import unpack
from gradwire.core.strategy.codes import DENSE


@dataclass(kw_only=True)
class NoCodec(Codec):
    """Sends the vector as it is."""

    kind = DENSE
    law = LOSSLESS
    values = "w n"

    def encode(self, vector: torch.Tensor) -> Code:
        """Return the vector as the code; it is neither copied nor checked."""
        return Code(vector)

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy the code into `out`; without `out`, return the code itself."""
        (vector,) = unpack(data, (self.layout.n, self.dtype))
        return vector if out is None else out.copy_(vector)
