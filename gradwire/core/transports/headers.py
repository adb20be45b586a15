"""The header of a message that crosses the boundary of a machine's memory: always SIZE bytes, the payload follows it.

Fields of fixed size and a tag, filled up with zeros. What does not begin as a header must is refused.
"""

import struct
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import torch

_FIELDS = struct.Struct("<4sBBBBQqdd")  # magic, version, kind, dtype, bytes of the tag, numel, n, sent, leaves
_MAGIC, _VERSION = b"dptr", 1
SIZE = 256
TAG_BYTES = SIZE - _FIELDS.size
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


class Kind(IntEnum):
    """What follows the header."""

    TENSOR = 0  # the elements of a vector
    OBJECT = 1  # the bytes of a pickled object; none at all: the object None
    GOODBYE = 2  # nothing, ever: the sender has closed
    FAILED = 3  # as GOODBYE, but the sender has not done its work


_KINDS = tuple(Kind)


class Header(NamedTuple):
    """The header of a message: `numel` elements of `dtype` follow it (of an object: bytes)."""

    kind: Kind
    tag: str = ""
    dtype: torch.dtype = torch.uint8
    numel: int = 0
    n: float = 0  # the number beside the payload, an int64 or a float64
    sent: float = 0.0  # when
    leaves: float = 0.0  # when it begins to leave its sender's card

    @property
    def nbytes(self) -> int:
        """The bytes of the payload."""
        return self.numel * self.dtype.itemsize


def pack(header: Header) -> bytes:
    """Return the SIZE bytes of a header. Raises ValueError for a tag that is too long, TypeError for a dtype."""
    kind, tag, dtype, numel, n, sent, leaves = header
    name = encoded(tag, TAG_BYTES)
    bits, is_float = bits_of(n)
    fields = _FIELDS.pack(_MAGIC, _VERSION, kind, code_of(dtype) | is_float, len(name), numel, bits, sent, leaves)
    return (fields + name).ljust(SIZE, b"\0")


def unpack(raw: bytes | bytearray | memoryview) -> Header:
    """Return the header in SIZE bytes. Raises ValueError if they are something else."""
    if len(raw) != SIZE:
        raise ValueError(f"not the header of a message: {len(raw)} bytes instead of {SIZE}")
    magic, version, kind, dtype, tag_bytes, numel, n, sent, leaves = _FIELDS.unpack_from(raw)
    if magic != _MAGIC:
        raise ValueError(f"not the header of a message: it begins with {magic!r} instead of {_MAGIC!r}")
    if version != _VERSION:
        raise ValueError(f"a header of version {version} instead of {_VERSION}: the ranks run different code")
    if dtype & FLOAT:
        dtype, n = dtype ^ FLOAT, number_of(n)
    if kind >= len(_KINDS) or dtype >= len(DTYPES) or tag_bytes > TAG_BYTES:
        raise ValueError(f"a damaged header: kind {kind}, dtype {dtype}, a tag of {tag_bytes} bytes")
    tag = bytes(raw[_FIELDS.size : _FIELDS.size + tag_bytes]).decode()
    return Header(_KINDS[kind], tag, DTYPES[dtype], numel, n, sent, leaves)
