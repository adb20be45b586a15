"""The frames in the pipes between ranks that share memory.

A frame is a header of fixed size, a tag, and sometimes a payload. A frame without payload fits into one atomic write.

Frames with messages: DESCRIPTOR (read `numel` elements from `offset` of the sender's `buffer`), STAGED (the same of a
slot of the sender's stage), VECTOR, and OBJECT (a pickled one, or, with an empty payload, None). RELEASE answers a
DESCRIPTOR at once. FREED, or the next STAGED the other way, has in its `ticket` a bit for each slot that is free again.
BUFFER and SHARED hand out memory, the sender's `buffer` or the shared vector `tag`: their payload is a pickled handle
of it. MAPPED answers them: for that, the sender is no longer needed. GOODBYE is the last.
"""

import struct

import torch

from gradwire.core.transports.encoding import bits_of, code_of, encoded

# bytes in the frame, kind, dtype, bytes of the tag, ticket, buffer, offset, numel, n, when it was sent, when it leaves
HEADER = struct.Struct("<QBBHQQQQqdd")
HEADER_BYTES = HEADER.size
DESCRIPTOR, VECTOR, OBJECT, RELEASE, GOODBYE, BUFFER, SHARED, MAPPED, STAGED, FREED = range(10)
_TAG_BYTES = 1000  # so that a frame without payload stays below PIPE_BUF


def frame(
    kind: int,
    tag: str = "",
    payload: bytes = b"",
    ticket: int = 0,
    buffer: int = 0,
    offset: int = 0,
    numel: int = 0,
    n: float = 0,
    sent: float = 0.0,
    leaves: float = 0.0,
    dtype: int = 0,
) -> bytes:
    """Return a frame; what its kind does not need stays zero. Raises ValueError for a tag that is too long."""
    name = encoded(tag, _TAG_BYTES)
    size = HEADER_BYTES + len(name) + len(payload)
    bits, is_float = bits_of(n)
    fields = (size, kind, dtype | is_float, len(name), ticket, buffer, offset, numel, bits, sent, leaves)
    return HEADER.pack(*fields) + name + payload


def descriptor(
    kind: int, tag: str, ticket: int, buffer: int, offset: int, numel: int, n: float, sent: float, leaves: float
) -> bytes:
    """Return the frame of a DESCRIPTOR or a STAGED. Raises ValueError for a tag that is too long."""
    name = encoded(tag, _TAG_BYTES)
    size = HEADER_BYTES + len(name)
    bits, is_float = bits_of(n)
    return HEADER.pack(size, kind, is_float, len(name), ticket, buffer, offset, numel, bits, sent, leaves) + name


def vector_frame(tag: str, vector: torch.Tensor, n: float = 0, sent: float = 0.0, leaves: float = 0.0) -> bytes:
    """Return a frame that holds the content of `vector`. Raises TypeError for a dtype that cannot be sent."""
    dtype = code_of(vector.dtype)
    raw = vector.cpu().view(torch.uint8).numpy().tobytes()
    return frame(VECTOR, tag, raw, n=n, sent=sent, leaves=leaves, dtype=dtype)
