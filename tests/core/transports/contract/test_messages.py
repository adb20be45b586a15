"""What `transports.base` promises of messages, tried on every transport, with real processes where it has them.

Above each test stands what its ranks run.
"""

from typing import Any

import torch

from gradwire.core.transports.base import ANY, Transport
from gradwire.core.transports.encoding import DTYPES
from tests.core.transports.samples import MILLION
from tests.ranks import outcome, pattern, run, values

# Order


def arrive_late(transport: Transport) -> Any:
    """What rank 2 sends first arrives last."""
    if transport.rank == 1:
        transport.recv(2, "now")
        transport.isend(None, 0, "x")
        transport.recv(0, "it is here")
        transport.isend(None, 2, "it is there")
    elif transport.rank == 2:
        sent = transport.now()
        transport.isend(None, 1, "now")
        transport.recv(1, "it is there")
        transport._send(None, 0, "x", 0, sent)
        transport.isend(None, 0, "all are here")
    else:
        while not transport.inbox.queues.get((1, "x")):
            transport.recv(1, "nothing", timeout=0)
        transport.isend(None, 1, "it is here")
        transport.recv(2, "all are here")
        return [transport.recv(ANY, "x").src for _ in range(2)]
    return []


def test_what_arrives_last_and_was_sent_first_is_taken_first(engine: str) -> None:
    assert run(engine, arrive_late, 3)[0] == [2, 1]


# What is sent


def tensors_of_all_kinds(transport: Transport) -> dict[str, torch.Tensor]:
    """The same on both sides: rank 1 sends them, rank 0 knows what has to arrive."""
    own = transport.allocate(1000)
    own.copy_(pattern(1000, torch.float32))
    small = transport.allocate(999, torch.int8)
    small.copy_(pattern(999, torch.int8))
    big = transport.allocate(MILLION)
    big.copy_(pattern(MILLION, torch.float32))
    kinds = {
        "no element": torch.empty(0),
        "no element, of int8": torch.empty(0, dtype=torch.int8),
        "one element": torch.tensor([3.5]),
        "no dimension": torch.tensor(7),
        "a matrix": pattern(12, torch.float32).reshape(3, 4),
        "a transposed matrix": pattern(12, torch.float32).reshape(3, 4).t(),
        "every other element": pattern(99, torch.int16)[::2],
        "no element, strided": torch.empty(0)[::2],
        "one element, strided": torch.tensor([3.5])[::2],
        "with gradient": pattern(9, torch.float32).requires_grad_(),
        "a million elements": pattern(MILLION, torch.float32, seed=1),
        "a whole allocated vector": own,
        "no element of an allocated vector": own[10:10],
        "one element of an allocated vector": own[7:8],
        "an allocated slice": own[3:500],
        "an allocated slice at an odd byte": small[1:778],
        "every third element of an allocated vector": own[1::3],
        "one element of an allocated vector, strided": own[5:6:2],
        "an allocated vector as a matrix": own.reshape(10, 100),
        "an allocated vector as a transposed matrix": own.reshape(10, 100).t(),
        "an allocated vector seen as another dtype": own.view(torch.int32)[5:10],
        "a million allocated elements": big,
        "most of a million allocated elements": big[1:-1],
    }
    for seed, dtype in enumerate(DTYPES):
        kinds[f"{dtype}"] = pattern(777, dtype, seed)
        allocated = transport.allocate(777, dtype)
        allocated.copy_(pattern(777, dtype, seed))
        kinds[f"{dtype}, allocated"] = allocated[1:-1]
    return kinds


def send_all_kinds(transport: Transport) -> dict[str, tuple[bool, bool, bool]]:
    """Rank 0 returns, by name, whether the message has its source's shape (a vector), dtype and values."""
    right = {}
    kinds = tensors_of_all_kinds(transport)
    if transport.rank == 1:
        for work in [transport.isend(tensor, 0, name) for name, tensor in kinds.items()]:
            work.wait()
        return {}
    for name, tensor in kinds.items():
        with transport.recv(1, name) as message:
            got, expected = message.vector, tensor.detach().reshape(-1)
            right[name] = (got.shape == expected.shape, got.dtype == expected.dtype, torch.equal(got, expected))
    return right


def test_tensors_of_every_kind_arrive_as_they_were(engine: str) -> None:
    right = run(engine, send_all_kinds, 2)[0]
    assert len(right) == 23 + 2 * len(DTYPES)
    assert {name: flags for name, flags in right.items() if not all(flags)} == {}


def change_after_isend(transport: Transport) -> list[Any]:
    """Rank 1 changes what it has sent before rank 0 can have it all: a large message is on its way first."""
    own, kept = transport.allocate(MILLION), transport.allocate(100).fill_(1)
    if transport.rank == 1:
        plain, matrix, items = torch.ones(MILLION), torch.ones(2, 100), [1]
        nested = {"tensor": torch.ones(5), "of": ["a list", torch.ones(2)]}
        del own
        heir = torch.ones(MILLION)  # may lie where an allocated vector lay
        transport.isend(torch.ones(MILLION), 0, "large")
        for value in (plain, plain[1:50], heir, matrix.t(), kept[::2], items, nested):
            transport.isend(value, 0, "changed later")
        for changed in (plain, heir, matrix, kept):
            changed.fill_(-1)
        items.append(2)
        nested["tensor"].fill_(-1)  # type: ignore[attr-defined]
        transport.isend(None, 0, "changed")
        return []
    transport.recv(1, "large").release()
    transport.recv(1, "changed")
    got = [transport.recv(1, "changed later") for _ in range(7)]
    nested = got[6].object
    nested["tensor"] = nested["tensor"].tolist()
    nested["of"] = [nested["of"][0], nested["of"][1].tolist()]
    return [*(sorted(set(values(message))) for message in got[:5]), got[5].object, nested]


def test_what_is_not_allocated_may_be_changed_right_after_isend(engine: str) -> None:
    received = run(engine, change_after_isend, 2)[0]
    assert received == [*[[1]] * 6, {"tensor": [1] * 5, "of": ["a list", [1, 1]]}]


OBJECTS: list[Any] = [None, 0, False, "", "text", b"\0" * MILLION, {"a": (1, [2.5, None])}, list(range(100_000))]


def send_objects(transport: Transport) -> list[Any]:
    if transport.rank == 1:
        for value in OBJECTS:
            transport.isend(value, 0, "object")
        return []
    received = [transport.recv(1, "object") for _ in OBJECTS]
    return [(message.object, message.tensor, outcome(lambda m=message: m.vector)[0]) for message in received]


def test_python_objects_arrive_whatever_their_size(engine: str) -> None:
    assert run(engine, send_objects, 2)[0] == [(value, None, "TypeError") for value in OBJECTS]


def ask_for_what_cannot_be(transport: Transport) -> list[Any]:
    peer, own = 1 - transport.rank, transport.allocate(2)
    refused = [outcome(transport.isend, 1, dst, "x") for dst in (transport.rank, 2, -1)]
    refused += [outcome(transport.isend, value, peer, "x", n) for value in (own, "text") for n in (2**63, -(2**63) - 1)]
    refused.append(outcome(transport.recv, peer, ()))
    long = outcome(transport.isend, 1, peer, "é" * 1000)
    if not isinstance(long, tuple):
        long = transport.recv(peer, "é" * 1000).object
    transport.isend("next", peer, "y", 7)
    message = transport.recv(peer, "y")
    return [refused, long, (message.object, message.n)]


def test_what_cannot_be_is_refused_at_once_and_harms_nothing(engine: str) -> None:
    for rank, (refused, long, after) in enumerate(run(engine, ask_for_what_cannot_be, 2)):
        told = [f"rank {rank} cannot send to rank {to} in a world of 2" for to in (rank, 2, -1)]
        told += [f"{n} is not an int64" for n in (2**63, -(2**63) - 1)] * 2
        assert refused == [("ValueError", text) for text in (*told, "recv needs a tag")]
        assert long == 1 or (long[0] == "ValueError" and "long" in long[1])
        assert after == ("next", 7)
