"""Ranks on machines whose clocks differ: `now` becomes the same on all, and what depends on it goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from gradwire.clusters import remote
from gradwire.clusters.remote import Remote
from gradwire.core.transports import timing
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import Alignment
from gradwire.networks.link import Link
from tests.pools import NEEDS_MPI
from tests.ranks import HELD_BACK, held_back, run

AHEAD = 3600.0  # seconds; each rank's clock is so far ahead of that of the rank before it
KINDS = ["process_group", pytest.param("mpi", marks=NEEDS_MPI)]


@contextmanager
def another_clock(transport: Transport) -> Iterator[Remote]:
    """Let this process show another time, as another machine would, until the block ends."""
    assert isinstance(transport, Remote)
    real, rank = timing.now, transport.rank

    def show() -> float:
        return real() + rank * AHEAD

    another = mock.Mock(return_value=(str(rank), ""))
    with mock.patch.object(timing, "now", show), mock.patch.object(remote, "_clock_of_this_process", another):
        yield transport


def align(transport: Transport) -> tuple[float, float, bool]:
    """Return offset and error, and whether what all ranks read then is one time."""
    assert isinstance(transport, Remote)
    transport.align_clocks()
    before = transport.now()
    for peer in transport.peers:
        transport.isend(before, peer, "before")
    theirs = [transport.recv(peer, "before").object for peer in transport.peers]
    return transport.alignment.offset, transport.alignment.error, max(theirs) < transport.now() + AHEAD / 2


def align_another_clock(transport: Transport, link: Link | None) -> tuple[float, float, bool]:
    with another_clock(transport) as own:
        own._link = link  # another machine's clock holds nothing back
        return align(own)


@pytest.mark.parametrize("link", [None, held_back(HELD_BACK[1])], ids=["no link", "link"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_clocks_are_aligned_within_the_error_that_is_told(kind: str, link: Link | None) -> None:
    (first, *rest) = run(kind, align_another_clock, 3, link)
    assert first == (0.0, 0.0, True)
    for rank, (offset, error, one_time) in enumerate(rest, start=1):
        assert abs(offset + rank * AHEAD) <= error + 1e-6  # what these numbers of an hour are rounded to
        assert error < AHEAD / 4
        assert one_time


def test_the_fastest_answer_counts_and_belongs_to_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Question k is asked at 10 k and answered at 10 k + 8, by rank 0's clock 1000 s later; one is answered at once."""
    times = [t for k in range(20) for t in (10.0 * k, 10.0 * k + (2.0 if k == 13 else 8.0))]
    answers = [1000.0 + 10 * k + (1.0 if k == 13 else 7.0) for k in range(20)]
    monkeypatch.setattr(timing, "now", mock.Mock(side_effect=times))
    rank = mock.Mock(alignment=Alignment("here"), _hear=mock.Mock(side_effect=answers))
    Remote._ask(rank)
    assert rank.alignment == Alignment("here", 1000.0, 1.0)
