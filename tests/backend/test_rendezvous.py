"""Ranks that cannot find each other."""

import json
import os
from datetime import timedelta

import pytest
import torch.distributed as dist

from gradwire.backend.rendezvous import _machine, meet
from gradwire.core.records.errors import RunFailed


@pytest.mark.parametrize(
    ("machine", "pid", "says"),
    [
        ("another", 1, 'rank 1 is on another machine than rank 0, or in another container; use "gloo" there'),
        (_machine(), 2**22 + 1, "rank 1, process 4194305, cannot be reached: No such file or directory; it has ended"),
        ("", 0, "rank 1 has not come to the start of the group within 0.01 s"),
    ],
)
def test_a_rank_that_cannot_be_found_is_named(machine: str, pid: int, says: str) -> None:
    store, before = dist.HashStore(), len(os.listdir("/proc/self/fd"))
    if machine:
        store.set("pipes of 1", json.dumps((machine, pid, [[5, -1]])))
    with pytest.raises(RunFailed, match=f"^backend gradwire: {says}"):
        meet(store, 0, 2, timedelta(seconds=0.01), meshes=1)
    assert len(os.listdir("/proc/self/fd")) == before
