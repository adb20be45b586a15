"""What `transports.base` promises when a peer is late, on every transport.

Above each test stands what its ranks run.
"""

from typing import Any

import pytest

from tests.ranks import LIMIT, run
from transports.base import ANY, Transport
from transports.messages import WaitTimeout


def wait_in_vain(transport: Transport) -> dict[str, Any]:
    if transport.rank != 0:
        transport.recv(0, "go on")
        transport.isend(transport.rank, 0, "x")
        transport.isend(transport.rank, 0, "y")
        transport.recv(0, "go home")
        return {}

    def wait(**limit: float) -> list[tuple[tuple[int, ...], str, bool]]:
        seen = []
        for src in (2, ANY):
            t0 = transport.now()
            with pytest.raises(WaitTimeout) as caught:
                transport.recv(src, "x", **limit)
            seen.append((caught.value.ranks, str(caught.value), transport.now() - t0 >= 0.2 - 1e-9))
        return seen

    given_limit = wait(timeout=0.2)
    transport.timeout = 0.2
    own_limit = wait()
    transport.timeout = LIMIT
    for peer in transport.peers:
        transport.isend(None, peer, "go on")
    after = [[transport.recv(src, tag).object for src in (2, ANY, ANY)] for tag in ("x", "y")]
    for peer in transport.peers:
        transport.isend(None, peer, "go home")
    return {"given": given_limit, "own": own_limit, "after": after}


def test_a_time_out_names_the_ranks_and_harms_nothing(engine: str) -> None:
    seen = run(engine, wait_in_vain, 4)[0]
    assert seen["given"] == seen["own"]
    assert seen["given"] == [
        ((2,), "rank 0 waited 0.2 s for 'x' from rank 2", True),
        ((1, 2, 3), "rank 0 waited 0.2 s for 'x' from rank 1, 2, 3", True),
    ]
    assert [sorted(numbers) for numbers in seen["after"]] == [[1, 2, 3]] * 2
