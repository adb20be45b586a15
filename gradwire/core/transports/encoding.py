"""How dtypes, tags and the number beside a payload travel as bytes."""

import struct
from functools import lru_cache

import torch

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
FLOAT = 0x80  # added to the code of a dtype: the number beside the payload is a float64, not an int64


@lru_cache(1024)
def encoded(tag: str, most: int) -> bytes:
    """Return a tag as bytes. Raises ValueError if they are more than `most`."""
    name = tag.encode()
    if len(name) > most:
        raise ValueError(f"the tag {tag[:20]!r}... is too long: {len(name)} bytes, and at most {most} can be sent")
    return name


def code_of(dtype: torch.dtype) -> int:
    """Return the number that a dtype travels as. Raises TypeError."""
    if dtype not in _CODES:
        raise TypeError(f"a tensor of {dtype} cannot be sent; convert it first")
    return _CODES[dtype]


def bits_of(n: float) -> tuple[int, int]:
    """Return the number beside a payload as the int64 that travels, and FLOAT if it is a float, else 0."""
    return (struct.unpack("<q", struct.pack("<d", n))[0], FLOAT) if isinstance(n, float) else (n, 0)


def number_of(bits: int) -> float:
    """Return the float64 that travels as the int64 `bits`."""
    found: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return found
