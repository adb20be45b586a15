"""What a received vector holds after its release: bytes that no computation gives, and that a result of them keeps."""

import torch

from transports.messages import as_vector

_ONES = 0xFF  # in all bytes, that is a NaN whose bits are all set, the index -1, or 255
_BITS = {torch.float32: (torch.int32, 2**31 - 1), torch.float64: (torch.int64, 2**63 - 1)}  # all but the sign


def spoil(vector: torch.Tensor) -> None:
    """Write over a vector whose sender may write there from here on."""
    as_vector(vector).view(torch.uint8).fill_(_ONES)


def is_spoiled(vector: torch.Tensor) -> bool:
    """Whether an element is a NaN that came from there: additions and multiplications keep its bits."""
    if vector.dtype not in _BITS:
        return False
    integers, ones = _BITS[vector.dtype]
    return bool(((vector.contiguous().view(integers) & ones) == ones).any())
