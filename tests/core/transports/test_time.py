"""Time in which a process was stopped counts towards no limit."""

import pytest

from gradwire.core.transports.shared_memory import SharedMemory
from tests.core.transports.samples import pair


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
