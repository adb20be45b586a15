"""The pipes between ranks, and the frames that go through them.

A frame is a header of fixed size, a tag, and sometimes a payload. A frame without payload fits into one atomic write.

Frames with messages: DESCRIPTOR (where to read in the sender's memory), VECTOR, OBJECT. RELEASE answers a descriptor.
BUFFER and SHARED hand out memory: their payload is a pickled handle of it, and TAKEN answers them. GOODBYE is the last.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

import torch

from transports.headers import bits_of

# bytes in the frame, kind, dtype, bytes of the tag, ticket, buffer, offset, numel, n, when it was sent, when it leaves
HEADER = struct.Struct("<QBBHQQQQqdd")
DESCRIPTOR, VECTOR, OBJECT, RELEASE, GOODBYE, BUFFER, SHARED, TAKEN = range(8)
RETURNED = 128  # added to a rank in a notice of the launcher: not its death, but its return
_TAG_BYTES = 1000  # so that a frame without payload stays below PIPE_BUF
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
_DTYPE_CODE = {dtype: code for code, dtype in enumerate(_DTYPES)}


@dataclass
class Endpoint:
    """One rank's ends of the pipes, made by `wire` and given to its process.

    `spares` are pipes, in and out, to ranks that will be started again, in the order of their restarts; `life` counts
    how often this rank was. Such a rank has pipes only to the ranks that let it in.
    """

    rank: int
    world_size: int
    inbound: dict[int, Connection]
    outbound: dict[int, Connection]
    deaths: Connection
    spares: list[tuple[Connection, Connection]] = field(default_factory=list)
    life: int = 0

    def close(self) -> None:
        """Close this process's copies of the pipe ends."""
        spares = (end for pair in self.spares for end in pair)
        for connection in (*self.inbound.values(), *self.outbound.values(), *spares, self.deaths):
            connection.close()


def wire(world_size: int, context: BaseContext) -> tuple[list[Endpoint], list[Connection]]:
    """Return an endpoint for each rank, and the launcher's ends of the pipes on which it reports deaths to them."""
    endpoints, notices = [], []
    for rank in range(world_size):
        deaths, notice = context.Pipe(duplex=False)
        endpoints.append(Endpoint(rank, world_size, {}, {}, deaths))
        notices.append(notice)
    for src in range(world_size):
        for dst in range(world_size):
            if src != dst:
                endpoints[dst].inbound[src], endpoints[src].outbound[dst] = context.Pipe(duplex=False)
    return endpoints, notices


def spare_pipes(
    endpoints: list[Endpoint], hosts: Iterable[int], context: BaseContext
) -> dict[int, tuple[Connection, Connection]]:
    """Give each of `hosts` one more spare pair of pipes; return the other ends of them, in and out, by host."""
    theirs: dict[int, tuple[Connection, Connection]] = {}
    for host in hosts:
        to_host, to_newcomer = context.Pipe(duplex=False), context.Pipe(duplex=False)
        endpoints[host].spares.append((to_host[0], to_newcomer[1]))
        theirs[host] = (to_newcomer[0], to_host[1])
    return theirs


def _name(tag: str) -> bytes:
    name = tag.encode()
    if len(name) > _TAG_BYTES:
        raise ValueError(f"the tag {tag[:20]!r}... is longer than {_TAG_BYTES} bytes")
    return name


def object_frame(tag: str, payload: bytes, n: float = 0, sent: float = 0.0, leaves: float = 0.0) -> bytes:
    """Return a frame that carries a pickled object, or, with an empty payload, None."""
    return _frame(OBJECT, tag, payload, n=n, sent=sent, leaves=leaves)


def shared_frame(tag: str, handle: bytes) -> bytes:
    """Return a frame that hands out the shared vector `tag`."""
    return _frame(SHARED, tag, handle)


def buffer_frame(buffer: int, handle: bytes) -> bytes:
    """Return a frame that hands out the sender's `buffer`, of which descriptors will speak."""
    return _frame(BUFFER, "", handle, buffer=buffer)


def goodbye_frame() -> bytes:
    """Return the last frame of a rank that closes its transport."""
    return _frame(GOODBYE, "", b"")


def taken_frame() -> bytes:
    """Return a frame that says that one more handle has been taken: its sender is no longer needed."""
    return _frame(TAKEN, "", b"")


def _frame(
    kind: int,
    tag: str,
    payload: bytes,
    dtype: int = 0,
    buffer: int = 0,
    numel: int = 0,
    n: float = 0,
    sent: float = 0.0,
    leaves: float = 0.0,
) -> bytes:
    name = _name(tag)
    size = HEADER.size + len(name) + len(payload)
    bits, is_float = bits_of(n)
    header = (size, kind, dtype | is_float, len(name), 0, buffer, 0, numel, bits, sent, leaves)
    return HEADER.pack(*header) + name + payload


def descriptor_frame(
    tag: str, ticket: int, buffer: int, offset: int, numel: int, n: float = 0, sent: float = 0.0, leaves: float = 0.0
) -> bytes:
    """Return a frame that says where to read: `numel` elements from `offset` of the sender's `buffer`."""
    name = _name(tag)
    size = HEADER.size + len(name)
    bits, is_float = bits_of(n)
    header = (size, DESCRIPTOR, is_float, len(name), ticket, buffer, offset, numel, bits, sent, leaves)
    return HEADER.pack(*header) + name


def release_frame(ticket: int) -> bytes:
    """Return a frame that says that the message with this ticket is no longer read."""
    return HEADER.pack(HEADER.size, RELEASE, 0, 0, ticket, 0, 0, 0, 0, 0.0, 0.0)


def vector_frame(tag: str, vector: torch.Tensor, n: float = 0, sent: float = 0.0, leaves: float = 0.0) -> bytes:
    """Return a frame that holds the content of `vector`. Raises TypeError for a dtype that cannot be sent."""
    if vector.dtype not in _DTYPE_CODE:
        raise TypeError(f"a tensor of {vector.dtype} cannot be sent; convert it first")
    raw = vector.cpu().view(torch.uint8).numpy().tobytes()
    return _frame(VECTOR, tag, raw, _DTYPE_CODE[vector.dtype], numel=vector.numel(), n=n, sent=sent, leaves=leaves)


def to_vector(raw: bytes | bytearray, dtype: int) -> torch.Tensor:
    """Return the vector in the payload of a vector frame."""
    if not raw:
        return torch.empty(0, dtype=_DTYPES[dtype])
    return torch.frombuffer(bytearray(raw), dtype=_DTYPES[dtype])
