"""What `transports.base` promises of memory and of messages on their way, on every transport.

Above each test stands what its ranks run.
"""

from typing import Any

import pytest
import torch

from tests.ranks import engine_named, outcome, run, values, wait_until
from tests.transports.samples import DTYPES, MILLION
from transports.base import Transport

# Many messages at once


def send_thousands_first(transport: Transport) -> list[bool]:
    """Every rank sends 3,000 messages to every other before it receives any."""
    n = 3000
    own = transport.allocate(n)
    own.copy_(torch.arange(n) + transport.rank)
    plain = torch.zeros(1000)
    works = []
    for number in range(n):
        for peer in transport.peers:
            if number % 3 == 0:
                works.append(transport.isend(own[number : number + 1], peer, "slice"))
            elif number % 3 == 1:
                works.append(transport.isend(plain.fill_(number), peer, "copy"))
            else:
                works.append(transport.isend(number, peer, "object"))
    complete = []
    for peer in transport.peers:
        slices = [values(transport.recv(peer, "slice"))[0] for _ in range(0, n, 3)]
        complete.append(slices == [number + peer for number in range(0, n, 3)])
        copies = [set(values(transport.recv(peer, "copy"))) for _ in range(1, n, 3)]
        complete.append(copies == [{number} for number in range(1, n, 3)])
        complete.append([transport.recv(peer, "object").object for _ in range(2, n, 3)] == list(range(2, n, 3)))
    for work in works:
        work.wait()
    return complete


@pytest.mark.slow
def test_thousands_of_messages_each_way_may_be_on_their_way(engine: str) -> None:
    assert run(engine, send_thousands_first, 3) == [[True] * 6] * 3


# Work and release


def hold_then_release(transport: Transport, how: str) -> list[Any]:
    own = transport.allocate(100)
    if transport.rank == 1:
        message = transport.recv(0, "x")
        transport.isend(None, 0, "received")
        transport.recv(0, "release")
        if how == "release":
            message.release()
            message.release()  # once more does no harm
        elif how == "with":
            with message:
                pass
        else:
            out = torch.zeros(10)
            message.copy_to(out)
            return out.tolist()
        return []
    own.fill_(3)
    work = transport.isend(own[5:15], 1, "x")
    transport.recv(1, "received")
    held = work.done
    transport.isend(None, 1, "release")
    work.wait()
    return [held, work.done]


@pytest.mark.parametrize("how", ["release", "with", "copy_to"])
def test_wait_returns_once_the_receiver_has_released_the_message(engine: str, how: str) -> None:
    (held, done), out = run(engine, hold_then_release, 2, how)
    assert done
    assert out == ([3] * 10 if how == "copy_to" else [])
    if engine_named(engine).in_place:
        assert not held, "the receiver still reads the sender's memory"


def wait_without_recv(transport: Transport) -> list[bool]:
    """Rank 1 receives nothing until rank 0's wait is over; what is copied needs nobody's release."""
    if transport.rank == 1:
        transport.recv(0, "waited")
        return [len(values(transport.recv(0, "x"))) == 10 * MILLION]
    work = transport.isend(torch.ones(10 * MILLION), 1, "x")
    work.wait()
    transport.isend(None, 1, "waited")
    return [work.done]


def test_wait_for_a_copied_tensor_needs_no_release(engine: str) -> None:
    assert run(engine, wait_without_recv, 2) == [[True], [True]]


def look_again_and_again(transport: Transport) -> list[Any]:
    """Both ranks send much, and ask whether it has gone before they receive anything."""
    peer = 1 - transport.rank
    work = transport.isend(torch.full((5 * MILLION,), transport.rank), peer, "x")
    return [wait_until(lambda: work.done), set(values(transport.recv(peer, "x")))]


def test_a_copied_tensor_is_done_though_both_only_ask(engine: str) -> None:
    assert run(engine, look_again_and_again, 2) == [[True, {1}], [True, {0}]]


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


def send_on_what_was_received(transport: Transport) -> list[float]:
    own = transport.allocate(10)
    own.fill_(transport.rank)
    left, right = (transport.rank - 1) % 3, (transport.rank + 1) % 3
    first = transport.isend(own, right, "first")
    with transport.recv(left, "first") as message:
        transport.isend(message.vector[2:4], right, "passed on")
    first.wait()
    return values(transport.recv(left, "passed on"))


def test_a_received_vector_can_be_sent_on(engine: str) -> None:
    assert run(engine, send_on_what_was_received, 3) == [[1, 1], [2, 2], [0, 0]]


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


def log_and_hold(transport: Transport) -> Any:
    """Rank 1 holds a message long after its receipt was logged."""
    own = transport.allocate(4)
    if transport.rank == 0:
        transport.isend(own, 1, "x").wait()
        return None
    message = transport.recv(0, "x").log_receipt()
    logged = transport.now()
    message.log_receipt()
    transport.sleep(0.01)
    message.release()
    events = transport.recorder.frame()
    return [t1 <= logged for t1 in events[events["op"] == "recv"]["t1"]]


def test_a_receipt_that_was_logged_is_recorded_once_and_ends_there(engine: str) -> None:
    assert run(engine, log_and_hold, 2, record=True)[1] == [True]


# Memory


def allocate_and_share(transport: Transport) -> list[Any]:
    for _ in range(5):  # so that there is memory about that is not zero
        torch.full((1000,), 9.0)
    vectors = [transport.allocate(numel, dtype) for numel in (0, 1, 1000) for dtype in DTYPES]
    facts = {(vector.dim(), bool(vector.any()), vector.device.type, vector.is_contiguous()) for vector in vectors}
    assert [vector.dtype for vector in vectors] == DTYPES * 3
    assert [vector.numel() for vector in vectors] == [0] * 10 + [1] * 10 + [1000] * 10
    return list(facts)


def test_allocate_returns_zeroed_vectors(engine: str) -> None:
    assert run(engine, allocate_and_share, 2) == [[(1, False, "cpu", True)]] * 2


def allocate_alone(transport: Transport) -> Any:
    """Rank 0 allocates as it likes; rank 1 only talks; rank 2 is gone at once."""
    if transport.rank == 2:
        return None
    if transport.rank == 1:
        return [transport.recv(0, "text").object, values(transport.recv(0, "slice"))]
    lost = outcome(transport.recv, 2, "x")
    vectors = [transport.allocate(10) for _ in range(20)]
    transport.isend("text", 1, "text")
    late = transport.allocate(5, torch.int64).fill_(7)
    transport.isend(late[1:3], 1, "slice").wait()
    return [lost, sum(vector.numel() for vector in vectors)]


def test_a_rank_allocates_alone(engine: str) -> None:
    assert run(engine, allocate_alone, 3) == [[("PeerLost", 2), 200], ["text", [7, 7]], None]


def allocate_in_another_order(transport: Transport) -> Any:
    """Each rank allocates other lengths, and in the order of its rank; it allocates more when messages have gone."""
    kinds = [(10 + transport.rank, torch.float32), (20, torch.int64), (30, torch.int8)]
    order = kinds[transport.rank :] + kinds[: transport.rank]
    own = {dtype: transport.allocate(numel, dtype).fill_(transport.rank + 1) for numel, dtype in order}
    seen: list[Any] = []
    for turn, (_, dtype) in enumerate(kinds):
        works = [transport.isend(own[dtype], peer, f"{turn}") for peer in transport.peers]
        for peer in transport.peers:
            with transport.recv(peer, f"{turn}") as message:
                seen.append((peer, len(message.vector), set(message.vector.tolist()), message.vector.dtype == dtype))
        for work in works:
            work.wait()
        if transport.rank == turn:
            own[kinds[(turn + 1) % 3][1]] = transport.allocate(20, kinds[(turn + 1) % 3][1]).fill_(transport.rank + 1)
    return seen


def test_ranks_allocate_in_different_orders_and_later_too(engine: str) -> None:
    for rank, seen in enumerate(run(engine, allocate_in_another_order, 3)):
        peers = [peer for peer in range(3) if peer != rank]
        assert [(peer, content) for peer, _, content, right in seen if right] == [
            (peer, {peer + 1}) for _ in range(3) for peer in peers
        ]
        assert [numel for _, numel, *_ in seen[:2]] == [10 + peer for peer in peers]
