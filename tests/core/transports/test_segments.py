"""No name of shared memory stays where there was not enough of it."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradwire.core.transports.memory import remove_segments
from gradwire.core.transports.messages import OutOfSharedMemory
from tests.core.transports.samples import pair
from tests.runs import said


@contextmanager
def no_room_beyond(nbytes: int) -> Iterator[None]:
    """Let this process make no larger file in the block: torch then fails as where /dev/shm is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]


def test_a_vector_for_which_there_is_no_memory_leaves_no_name() -> None:
    with pair() as (transport, _):
        with no_room_beyond(100_000), pytest.raises(OutOfSharedMemory, match="no shared memory left for 4 MB"):
            transport.allocate(1_000_000)
        assert names() == []


def test_data_for_which_there_is_no_memory_leave_no_name(tmp_path: Path) -> None:
    with no_room_beyond(100_000):
        code, text = said("--device", "cpu", "--dataset", "digits", "--results_dir", str(tmp_path))
    assert code == 2
    assert text.startswith("error: --dataset digits: no shared memory left for it"), text
    assert names() == []


def test_the_names_of_one_process_are_removed() -> None:
    mine, other = (Path("/dev/shm") / f"torch_{pid}_test" for pid in (os.getpid(), f"{os.getpid()}0"))
    mine.touch()
    other.touch()
    try:
        remove_segments(os.getpid())
        assert (mine.exists(), other.exists()) == (False, True)
    finally:
        other.unlink()
