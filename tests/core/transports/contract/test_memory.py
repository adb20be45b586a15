"""What `gradwire.core.transports.base` promises of memory and of messages on their way, on every transport.

Above each test stands what its ranks run.
"""

from typing import Any

import torch

from gradwire.core.transports.base import Transport
from gradwire.core.transports.encoding import DTYPES
from tests.core.transports.samples import MILLION
from tests.ranks import engine_named, run, values, wait_until

# Work and release


def hold_then_release(transport: Transport) -> list[Any]:
    """Rank 1 holds slices and gives each back in another way; rank 0 says if its Work was done before and after."""
    own = transport.allocate(100).fill_(3)
    seen: list[Any] = []
    for how in ("release", "with", "copy_to"):
        if transport.rank == 0:
            work = transport.isend(own[5:15], 1, "x")
            transport.recv(1, "received")
            held = work.done
            transport.isend(None, 1, "release")
            work.wait()
            seen.append((held, work.done))
            continue
        message = transport.recv(0, "x")
        transport.isend(None, 0, "received")
        transport.recv(0, "release")
        if how == "copy_to":
            out = torch.zeros(10)
            message.copy_to(out)
            return out.tolist()
        with message:
            if how == "release":
                message.release()  # once more does no harm
    return seen


def test_wait_returns_once_the_receiver_has_released_the_message(engine: str) -> None:
    works, out = run(engine, hold_then_release, 2)
    assert out == [3] * 10
    assert [done for _, done in works] == [True] * 3
    assert not (engine_named(engine).in_place and any(held for held, _ in works)), "the receiver still reads"


def send_much_first(transport: Transport) -> list[Any]:
    """Both ranks send much before they receive anything: rank 0 waits until it has gone, rank 1 only asks."""
    peer = 1 - transport.rank
    work = transport.isend(torch.full((2 * MILLION,), transport.rank), peer, "x")
    if transport.rank == 0:
        work.wait()
    return [wait_until(lambda: work.done), set(values(transport.recv(peer, "x")))]


def test_a_copied_tensor_is_done_though_nobody_receives_it(engine: str) -> None:
    assert run(engine, send_much_first, 2) == [[True, {1}], [True, {0}]]


def watch_the_senders_memory(transport: Transport) -> list[Any]:
    own = transport.allocate(100)
    if transport.rank == 0:
        own[3:6] = 1
        work = transport.isend(own[3:6], 1, "x")
        transport.recv(1, "received")
        own[4] = 2  # not allowed, but it shows whose memory it is
        transport.isend(None, 1, "changed")
        work.wait()
        return own.tolist()
    with transport.recv(0, "x") as message:
        transport.isend(None, 0, "received")
        transport.recv(0, "changed")
        return [message.vector.tolist(), own.tolist()]


def test_an_allocated_slice_is_read_in_place_where_memory_is_shared(engine: str) -> None:
    mine, (seen, theirs) = run(engine, watch_the_senders_memory, 2)
    assert seen == ([1, 2, 1] if engine_named(engine).in_place else [1, 1, 1])
    assert mine == [0] * 3 + [1, 2, 1] + [0] * 94
    assert theirs == [0] * 100, "each rank's allocated vector is its own"


def detach_and_hold(transport: Transport) -> Any:
    own = transport.allocate(4).fill_(1)
    if transport.rank == 0:
        work = transport.isend(own, 1, "x")
        transport.isend(torch.ones(4), 1, "copy")
        transport.isend("text", 1, "object")
        work.wait()
        own.fill_(2)
        transport.isend(None, 1, "changed")
        second = transport.isend(own, 1, "x")
        transport.recv(1, "held")
        held = second.done
        transport.isend(None, 1, "release")
        second.wait()
        return held
    message = transport.recv(0, "x")
    assert message.detach() is message
    message.detach()
    copied = transport.recv(0, "copy").detach()
    text = transport.recv(0, "object").detach()
    transport.recv(0, "changed")
    second_message = transport.recv(0, "x")
    for held_long in (message, copied, text):
        held_long.release()  # nothing more: the second message of "x" is still held
    transport.isend(None, 0, "held")
    transport.recv(0, "release")
    second_message.release()
    events = transport.recorder.frame()
    received = events[(events["op"] == "recv") & events["tag"].isin(["x", "copy", "object"])]
    return message.vector.tolist(), copied.vector.tolist(), text.object, list(received["tag"])


def test_a_detached_message_is_the_receivers_own(engine: str) -> None:
    held, seen = run(engine, detach_and_hold, 2, record=True)
    assert seen == ([1] * 4, [1] * 4, "text", ["x", "copy", "object", "x"])
    if engine_named(engine).in_place:
        assert not held


# Memory


def allocate_and_share(transport: Transport) -> list[Any]:
    for _ in range(5):  # so that there is memory about that is not zero
        torch.full((1000,), 9.0)
    vectors = [transport.allocate(numel, dtype) for numel in (0, 1, 1000) for dtype in DTYPES]
    facts = {(vector.dim(), bool(vector.any()), vector.device.type, vector.is_contiguous()) for vector in vectors}
    assert [vector.dtype for vector in vectors] == [*DTYPES] * 3
    assert [vector.numel() for vector in vectors] == [numel for numel in (0, 1, 1000) for _ in DTYPES]
    return list(facts)


def test_allocate_returns_zeroed_vectors(engine: str) -> None:
    assert run(engine, allocate_and_share, 2) == [[(1, False, "cpu", True)]] * 2
