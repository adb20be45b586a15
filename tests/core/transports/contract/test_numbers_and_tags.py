"""The number beside the payload, and several tags in one recv, on every transport."""

import itertools
from typing import Any

import pytest
import torch

from gradwire.core.transports.base import ANY, PeerLost, Transport
from tests.core.transports.samples import MILLION
from tests.ranks import outcome, run

NUMBERS: list[float] = [
    *(0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63)),
    *(0.5, -0.0, 3.0, 5e-324, float("inf"), float("nan")),
]


def number_everything(transport: Transport) -> Any:
    """Rank 1 sends every number beside every payload; rank 0 tells what has come, with its type."""
    own = transport.allocate(10)
    payloads = [own[3:7], torch.ones(5), torch.empty(0), torch.ones(MILLION // 4), {"text": 1}, None]
    if transport.rank == 1:
        sent = [transport.isend(payload, 0, f"{i}", n) for i, payload in enumerate(payloads) for n in NUMBERS]
        sent.append(transport.isend("no number", 0, "x"))
        for work in sent:
            work.wait()
        return transport.bytes_sent
    got = [[transport.recv(1, f"{i}") for _ in NUMBERS] for i in range(len(payloads))]
    assert {(message.object, message.tensor, message.nbytes) for message in got[-1]} == {(None, None, 0)}
    numbers = [[repr(message.n) for message in messages] for messages in got]
    for message in itertools.chain(*got):
        message.release()
    return numbers, transport.recv(1, "x").n


def test_a_number_arrives_beside_every_payload_and_counts_as_no_bytes(engine: str) -> None:
    (numbers, without), sent = run(engine, number_everything, 2)
    assert numbers == [list(map(repr, NUMBERS))] * 6
    assert without == 0
    pickled = sent[0] - len(NUMBERS) * (16 + 20 + MILLION)
    assert 0 < pickled < (len(NUMBERS) + 1) * 40, "neither the numbers nor None count"


ORDER = ["b", "a", "a", "c", "b", "other", "c", "a"]


def take_any_of_several_tags(transport: Transport, src: int) -> list[Any]:
    """Ranks 1 and 2 send in turns; rank 0 receives only when it knows that all have arrived."""
    if transport.rank != 0:
        for n, tag in enumerate(ORDER):
            if n % 2 + 1 == transport.rank or src != ANY:
                transport.recv(0, "your turn")
                transport.isend(torch.ones(2) if n % 3 else None, 0, tag, n)
                transport.isend(None, 0, "sent")
        transport.recv(0, "go home")
        return []
    senders = (1, 2) if src == ANY else (1,)
    for n, _ in enumerate(ORDER):
        sender = senders[n % len(senders)]
        transport.isend(None, sender, "your turn")
        transport.recv(sender, "sent")
    got = [transport.recv(src, ("a", "b", "c")) for _ in range(7)]
    nothing = transport.recv(src, ("a", "b"), timeout=0)
    late = outcome(transport.recv, src, ("a", "b"), timeout=0.01)
    other = transport.recv(src, ("other",)).n
    for peer in transport.peers:
        transport.isend(None, peer, "go home")
    with pytest.raises(PeerLost) as lost:
        transport.recv(1, ("never", "ever"))
    return [[(message.tag, message.n) for message in got], nothing, late, other, str(lost.value)]


@pytest.mark.parametrize("src", [1, ANY])
def test_several_tags_in_one_recv_keep_the_order_of_arrival(engine: str, src: int) -> None:
    got, nothing, late, other, lost = run(engine, take_any_of_several_tags, 3 if src == ANY else 2, src)[0]
    assert got == [(tag, n) for n, tag in enumerate(ORDER) if tag != "other"]
    assert nothing is None
    named = "1, 2" if src == ANY else "1"
    assert late == ("WaitTimeout", f"rank 0 waited 0.01 s for 'a' or 'b' from rank {named}")
    assert other == ORDER.index("other")
    assert lost == "lost rank 1: it has closed its transport (waited for 'never' or 'ever' from rank 1)"
