"""Time and reading: the transport's own methods, tried in one process."""

from typing import Any

import pytest
import torch

from gradwire.core.transports.shared_memory import SharedMemory
from tests.core.transports.samples import pair

# Standing still


class Stopped(SharedMemory):
    """A transport whose process is stopped for a day in each of its first waits; what it is sent comes after them."""

    time, days = 1000.0, 3

    def now(self) -> float:
        return self.time

    def _look(self, src: int) -> bool:
        return False  # only who waits finds something

    def _progress(self, src: int, seconds: float) -> None:
        if self.days:
            self.days -= 1
            self.time += 86400
            return
        self.time += seconds / 2
        super()._progress(src, 0)


def test_time_in_which_the_process_was_stopped_counts_towards_no_limit() -> None:
    with pair(Stopped) as (stopped, other):
        stopped.timeout = 5
        other.isend("text", 0, "x")
        assert stopped.recv(1, "x").object == "text"
        assert stopped.now() > 3 * 86400
        stopped.days = 3
        work = stopped.isend(stopped.allocate(4), 1, "slice")
        other.recv(0, "slice").release()
        work.wait()
        stopped.days = 3
        with pytest.raises(TimeoutError, match="rank 0 waited 5 s for"):  # of running time, of which there is enough
            stopped.recv(1, "nothing")
        stopped.days = 3


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
