"""The memory and the files that a process group takes: bounded, whatever its calls are."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from gradwire.backend.real_group import RealGroup
from gradwire.backend.registration import make_group
from tests.backend.groups import on_group
from tests.engines import LIMIT

_SLOW = 1.0  # seconds that a rank waits for one that does not come


def _group() -> RealGroup:
    group = c10d._get_default_group()
    assert isinstance(group, RealGroup)
    return group


def send(vector: torch.Tensor) -> None:
    dist.send(vector, 1)


def broadcast(vector: torch.Tensor) -> None:
    dist.broadcast(vector, 0)


def go_ahead(call: Callable[[torch.Tensor], None], numel: int) -> int:
    """Return how many calls of 200 rank 0 gets through, where rank 1 does not come before it has stopped."""
    store = c10d._get_default_store()
    if dist.get_rank():
        store.wait(["stopped"], timedelta(seconds=LIMIT))
        return 0
    _group().set_timeout(timedelta(seconds=_SLOW))
    done = 0
    with suppress(RuntimeError):  # of the wait that is over
        while done < 200:
            call(torch.zeros(numel, dtype=torch.int64))
            done += 1
    store.set("stopped", "")
    return done


@pytest.mark.parametrize(("call", "numel", "most"), [(send, 1000, 64), (broadcast, 1000, 64), (send, 5_000_000, 6)])
def test_a_rank_is_ahead_of_a_slow_one_by_some_copies(
    call: Callable[[torch.Tensor], None], numel: int, most: int
) -> None:
    assert on_group(2, go_ahead, call, numel)[0] in range(1, most + 1)


def send_much() -> list[bool]:
    right = []
    for k in range(200):
        vector = torch.full((1000,), k)
        if dist.get_rank():
            dist.recv(vector, 0)
        else:
            dist.send(vector, 1)
        right.append(bool((vector == k).all()))
    return right


def test_a_sender_that_has_waited_goes_on() -> None:
    assert on_group(2, send_much) == [[True] * 200] * 2


def reduce_new() -> tuple[int, int]:
    """Return how many buffers of its peer this rank has mapped, and how many files it has opened."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        vector = torch.ones(100_000)
        for _ in range(4):
            dist.all_reduce(vector)
    dist.barrier()
    (peer,) = _group().collectives._peers.values()
    return len(peer.buffers), len(os.listdir("/proc/self/fd")) - before


def test_a_peer_unmaps_the_memory_of_tensors_that_are_gone() -> None:
    for mapped, opened in on_group(2, reduce_new):
        assert mapped <= 4
        assert opened <= 12


def reduce_many() -> tuple[int, bool]:
    """Return how many files 100 tensors take that are reduced again and again, and whether the sums are right."""
    before, vectors = len(os.listdir("/proc/self/fd")), [torch.ones(40_000) for _ in range(100)]
    for _ in range(4):
        for vector in vectors:
            dist.all_reduce(vector)
    return len(os.listdir("/proc/self/fd")) - before, all(bool((vector == 16).all()) for vector in vectors)


def test_the_files_of_buckets_are_limited() -> None:
    for opened, is_right in on_group(2, reduce_many):
        assert is_right
        assert opened < 3 * 64 + 20


_kept: list[torch.Tensor] = []


def reduce_and_keep() -> None:
    _kept.append(torch.ones(100_000))
    for _ in range(4):
        dist.all_reduce(_kept[-1])


def files_after() -> int:
    """Return how many files are open, where no group has been made since the last one has ended."""
    return len([name for name in os.listdir("/proc/self/fd") if name.isdigit()])


def test_the_end_of_a_group_closes_the_files_of_buckets_that_live_on() -> None:
    opened = []
    for _ in range(13):
        on_group(2, reduce_and_keep)
        opened.append(max(on_group(2, files_after)))
    assert opened[-1] - opened[0] < 2 * 12  # torch holds one for each tensor that is kept


def make_again() -> list[float]:
    """Return sums in two groups that are made of one store, one after the other."""
    store, sums = dist.PrefixStore("again", c10d._get_default_store()), []
    for _ in range(2):
        group, vector = make_group(store, dist.get_rank(), 2, timedelta(seconds=LIMIT)), torch.ones(1)
        group._ranks = (0, 1)  # type: ignore[attr-defined]
        group.allreduce([vector]).wait()
        group.shutdown()
        sums.append(float(vector))
    return sums


def test_a_group_may_be_made_again_of_one_store() -> None:
    assert on_group(2, make_again) == [[2.0, 2.0]] * 2
