"""bfloat16: every element rounded, as torch rounds. Half the bytes of float32, its whole range, 8 bits of precision."""

from dataclasses import dataclass

import torch

from gradwire.compression.fp16 import Float16


@dataclass(kw_only=True)
class BFloat16(Float16):
    """Rounds every element to bfloat16: 8 bits of precision, and the range of float32."""

    rounded = torch.bfloat16
