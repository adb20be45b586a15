"""Memory is handed out with the first message that needs it: whoever does not wait for a rank does not notice it.

Above each test stands what its ranks run.
"""

from typing import Any

import pytest

from gradwire.core.transports.base import Transport
from gradwire.core.transports.peer import Peer
from tests.core.transports.samples import die
from tests.ranks import outcome, run_with_deaths, values
from tests.selection import by_default

# Dying


POINTS = ["before the hand-out", "in its frame", "right after its frame", "right after the message"]


def die_handing_out(transport: Transport, point: str) -> Any:
    """Rank 2 dies at one point of its first message of a slice; rank 0 learns of the death before it waits for it."""
    own = transport.allocate(1000).fill_(transport.rank)
    if transport.rank == 2:
        transport.isend("before", 0, "text")
        write = Peer.write

        def write_less(peer: Peer, data: bytes) -> None:
            if point == "in its frame":
                write(peer, data[: len(data) // 2])
            elif point == "right after its frame":
                write(peer, data)
            die()

        if point == "before the hand-out":
            die()
        if point != "right after the message":
            Peer.write = write_less  # type: ignore[method-assign,assignment]
        transport.isend(own, 0, "slice")
        die()
    other = 1 - transport.rank
    works = [transport.isend(own[:2], other, "slice")]
    seen: list[Any] = [values(transport.recv(other, "slice"))]
    if transport.rank == 1:
        seen.append(outcome(transport.recv, 2, "slice"))
        transport.isend(None, 0, "it is dead")
    else:
        transport.recv(1, "it is dead")
        seen.append(transport.recv(2, "text").object)
        seen.append(outcome(transport.recv, 2, "slice"))
        seen.append(outcome(transport.isend, own, 2, "slice"))
    works.append(transport.isend(transport.allocate(3).fill_(9), other, "slice"))
    seen.append(values(transport.recv(other, "slice")))
    for work in works:
        work.wait()
    return seen


@pytest.mark.parametrize("point", by_default(POINTS[1:3], POINTS))
def test_a_death_around_the_hand_out_is_lost_to_who_waits_and_nothing_to_the_others(point: str) -> None:
    seen = run_with_deaths("shared_memory", die_handing_out, 3, point)
    lost = ("PeerLost", 2)
    assert seen == {0: [[1, 1], "before", lost, lost, [9, 9, 9]], 1: [[0, 0], lost, [9, 9, 9]]}
