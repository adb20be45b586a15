"""Time and reading: the transport's own methods, tried in one process."""

from typing import Any

import pytest
import torch

from tests.transports.samples import pair
from transports.shared_memory import SharedMemory


class Clockwork(SharedMemory):
    """A transport whose time passes only where it waits or sleeps, or is told to."""

    time = 1000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def cpu_seconds(self) -> float:
        return self.time / 10

    def _progress(self, src: int, seconds: float) -> None:
        self.time += seconds / 2
        super()._progress(src, 0)


def test_a_transport_with_its_own_time_times_everything_by_it() -> None:
    with pair(Clockwork) as (slow, other):
        slow.recorder.enabled = True
        slow.timeout = 600
        slow.sleep(10)
        other.isend("text", 0, "x")
        assert slow.recv(1, "x").object == "text"  # the wait took half of 600 s
        assert slow.now() == 1310
        with pytest.raises(TimeoutError):
            slow.recv(1, "x", timeout=100)
        assert 1409 < slow.now() <= 1410
        slow.time = 2000
        with slow.recorder.phase("forward"):
            slow.sleep(5)
        slow.recorder.mark("epoch_s", 1)
        own = slow.allocate(4)
        work = slow.isend(own, 1, "slice")
        with pytest.raises(TimeoutError):
            work.wait()
        slow.time = 3000
        other.recv(0, "slice").release()
        work.wait()
        assert slow.cpu_seconds() == slow.now() / 10
        slow.time = 4000
    rows = slow.recorder.frame()[["phase", "op", "t0", "t1"]].values.tolist()
    assert rows == [
        ["wait", "", 1010, 1310],
        ["communicate", "recv", 1310, 1310],
        ["forward", "", 2000, 2005],
        ["epoch_s", "", 2005, 2005],
        ["communicate", "send", 2005, 2005],
        ["wait", "", 3000, 3300],
    ]


def test_the_usual_time_is_that_of_the_machine() -> None:
    with pair() as (transport, _):
        recorder_time = transport.recorder.clock
        before, computed = transport.now(), transport.cpu_seconds()
        transport.sleep(0.01)
        assert recorder_time() - before >= 0.01
        assert 0 <= transport.cpu_seconds() - computed <= transport.now() - before


# Reading


class Slow:
    """A place to copy to: meanwhile another rank ends an update of the vector and begins the next."""

    def __init__(self, begun: torch.Tensor, ended: torch.Tensor) -> None:
        self.begun, self.ended = begun, ended

    def copy_(self, vector: torch.Tensor) -> None:
        self.ended += 1
        self.begun += 1
        self.copied = vector.tolist()


def test_read_copies_a_vector_and_records_what_had_ended_before_and_begun_after() -> None:
    with pair() as (transport, _):
        transport.recorder.enabled = True
        vector, out = torch.arange(10.0), torch.zeros(10)
        begun, ended = (transport.shared_vector(name, 1, torch.int64, [0]) for name in ("begun", "ended"))
        begun.fill_(6)
        ended.fill_(6)
        assert transport.read(vector, out, 1, begun, ended) == 6
        assert out.tolist() == vector.tolist()
        begun += 1
        slow: Any = Slow(begun, ended)
        assert transport.read(vector, slow, 1, begun, ended) == 6
        assert slow.copied == vector.tolist()
        events = transport.recorder.frame()
    columns = ["phase", "op", "peer", "tag", "bytes", "version_read", "version_applied"]
    assert events[columns].values.tolist() == [
        ["communicate", "read", 1, "x", 40, 6, 6],
        ["communicate", "read", 1, "x", 40, 6, 8],
    ]
    assert (events["t1"] >= events["t0"]).all()
