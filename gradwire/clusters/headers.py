"""The header of a message that crosses the boundary of a machine's memory: always SIZE bytes, the payload follows it.

Fields of fixed size and a tag, filled up with zeros. What does not begin as a header must is refused.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

import torch

from gradwire.core.transports.encoding import DTYPES, FLOAT, bits_of, code_of, encoded, number_of

_FIELDS = struct.Struct("<4sBBBBQqdd")  # magic, version, kind, dtype, bytes of the tag, numel, n, sent, leaves
_MAGIC, _VERSION = b"dptr", 1
SIZE = 256
TAG_BYTES = SIZE - _FIELDS.size


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
