"""The backend gradwire, on ranks that are processes. Above each test stands what its ranks run."""

import os
import resource
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.backend.chosen import VARIABLE
from strategies.collectives import ring_all_reduce
from tests.backend.groups import all_results, on_group, trained
from tests.ranks import LIMIT, outcome


@pytest.mark.parametrize("n", [2, 3])
def test_collectives_and_training_end_as_on_gloo(n: int) -> None:
    for work, limit in ((all_results, 1e-5), (trained, 1e-5)):
        for theirs, ours in zip(on_group(n, work, backend="gloo"), on_group(n, work), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.0 if n == 2 else limit, atol=0.0 if n == 2 else limit)


def begin_many() -> list[float]:
    works = [
        (dist.all_reduce(vector, async_op=True), vector) for vector in (torch.full((k,), 1.0) for k in (9, 70_000))
    ]
    seen = []
    for work, vector in reversed(works):
        work.wait()
        seen.append(float(vector.mean()))

    def add_up_again(done: Any) -> float:
        (vector,) = done.value()
        dist.all_reduce(vector)
        again: Any = dist.all_reduce(vector, async_op=True)
        return float(again.get_future().wait()[0][0])

    last: Any = dist.all_reduce(torch.ones(5), async_op=True)
    return [*seen, last.get_future().then(add_up_again).wait()]


def test_works_may_end_in_another_order_and_callbacks_of_futures_may_wait_for_others() -> None:
    assert on_group(2, begin_many) == [[2.0, 2.0, 8.0]] * 2


def exchange(numel: int) -> list[Any]:
    r, N = dist.get_rank(), dist.get_world_size()
    if r:
        for k in range(3):
            dist.send(torch.full((numel,), 10.0 * r + k), 0, tag=k % 2)
        dist.barrier()
        return []
    late = [torch.empty(numel) for _ in range(2)]
    works: list[Any] = [dist.irecv(tensor, 2, tag=0) for tensor in late]
    dist.barrier()  # which no receive holds up
    odd = torch.empty(numel)
    sources = [dist.recv(odd, tag=1) for _ in range(N - 1)]
    first = [torch.empty(numel) for _ in range(2)]
    for tensor in first:
        dist.recv(tensor, 1)
    for work in reversed(works):
        work.wait()
    return [sorted(sources), [float(tensor[-1]) for tensor in (*first, *late)]]


@pytest.mark.parametrize("numel", [1, 100_000])
def test_messages_come_in_their_order_from_one_and_from_anybody(numel: int) -> None:
    assert on_group(3, exchange, numel)[0] == [[1, 2], [10.0, 12.0, 20.0, 22.0]]


def reduce_again() -> list[bool]:
    bucket, seen = torch.ones(50_000), []
    for _ in range(4):
        bucket.fill_(1)
        dist.all_reduce(bucket)
        seen.append(bool((bucket == 2).all()) and bucket.is_shared())
    for _ in range(20):  # which may have the address of one before it
        fresh = torch.ones(50_000)
        dist.all_reduce(fresh)
        seen.append(bool((fresh == 2).all()) and not fresh.is_shared())
    return seen


def test_the_memory_of_buckets_is_shared_and_that_of_fresh_tensors_is_not() -> None:
    assert on_group(2, reduce_again) == [[False, False, True, True, *[True] * 20]] * 2


def reduce_fresh() -> int:
    """Return how many files 80 more sums of new tensors open, after the first 20."""
    opened = []
    for times in (20, 80):
        for _ in range(times):
            dist.all_reduce(torch.ones(60_000))
        opened.append(len(os.listdir("/proc/self/fd")))
    return opened[1] - opened[0]


def test_copies_of_fresh_tensors_are_used_again_in_a_ring() -> None:
    assert max(on_group(3, reduce_fresh)) < 40


def overwrite() -> int:
    """Return how many of 40 collectives got what their sender had written after they had returned."""
    bucket, r, wrong = torch.ones(500_000), dist.get_rank(), 0
    for _ in range(4):  # after which peers read it in place
        dist.all_reduce(bucket)
    gathered = [torch.empty_like(bucket) for _ in range(2)] if r == 1 else None
    for k in range(20):
        bucket.fill_(k if r == 0 else -1)
        dist.broadcast(bucket, 0)
        wrong += not bool((bucket == k).all())
        bucket.fill_(k if r == 0 else -1)
        dist.gather(bucket, gathered, 1)
        bucket.fill_(-2)
        wrong += gathered is not None and not bool((gathered[0] == k).all())
    return wrong


def test_a_bucket_may_be_overwritten_when_its_collective_has_ended() -> None:
    assert on_group(2, overwrite) == [0, 0]


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def reduce_large() -> float:
    """Return how many MB the process grows by in 30 sums of new tensors of 4 MB, after the first 5."""
    grown = []
    for times in (5, 30):
        for _ in range(times):
            dist.all_reduce(torch.ones(1_000_000))
        grown.append(resident_mb())
    return grown[1] - grown[0]


def test_the_memory_of_fresh_tensors_is_free_again() -> None:
    assert max(on_group(2, reduce_large)) < 40


def in_groups() -> float:
    r, vector = dist.get_rank(), torch.ones(4)
    groups: list[Any] = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    works = [
        dist.all_reduce(vector.clone(), group=group, async_op=True) for group in groups if dist.get_rank(group) >= 0
    ]
    for work in works:
        work.wait()
    if r:
        dist.all_reduce(vector, group=groups[1])
        dist.destroy_process_group(groups[1])
    dist.barrier()
    return float(vector[0])


def test_groups_have_ranks_of_their_own() -> None:
    assert on_group(3, in_groups) == [1.0, 2.0, 2.0]


# Ranks that do not fit together


def fit_badly(how: str) -> list[str]:
    r, said = dist.get_rank(), list[str]()
    call: Callable[[], Any]
    for _ in range(2):  # the second call meets the end of the group
        vector = torch.ones(4 + r * (how == "lengths"))
        if how == "messages":
            call = (lambda: dist.recv(torch.ones(5, dtype=torch.int64), 0)) if r else dist.barrier
            if not r and not said:
                outcome(lambda: dist.send(torch.ones(4), 1))  # raises if the other has told it already
        elif how == "kinds" and r:
            call = lambda: dist.all_gather_into_tensor(torch.ones(8), vector)  # noqa: E731, B023
        elif how == "roots":
            call = lambda: dist.broadcast(vector, 1 - r)  # noqa: E731, B023
        else:
            call = lambda: dist.all_reduce(vector)  # noqa: E731, B023
        said.append(str(outcome(call)))
    return said


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("lengths", ("all_reduce of (4,) float32, SUM", "all_reduce of (5,) float32, SUM")),
        ("kinds", ("all_reduce of (4,) float32, SUM", "all_gather of (4,) float32")),
        ("roots", ("broadcast of (4,) float32, root 1", "broadcast of (4,) float32, root 0")),
        ("messages", ("send of (4,) float32 to rank 1", "recv of (5,) int64 from rank 0")),
    ],
)
def test_calls_that_do_not_fit_are_named_on_both_sides(how: str, words: tuple[str, str]) -> None:
    for said in (text for rank in on_group(2, fit_badly, how) for text in rank):
        assert "mismatch: " in said, said
        for rank in range(2):
            assert f"rank {rank} is in {words[rank]} at test_groups.py:" in said, said


def add_up_late(vector: torch.Tensor, transport: Any) -> None:
    """Look for the other's message only when it has closed."""
    transport.isend(vector, 1, "all")
    deadline = time.monotonic() + LIMIT
    while not os.path.exists(os.environ["CLOSED"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    transport.recv(1, "all")


def close_early(closed: str) -> str:
    os.environ |= {VARIABLE: f"{__name__}:add_up_late", "CLOSED": closed}
    try:
        group: Any = dist.new_group([0, 1])
        vector = torch.ones(4)
        if dist.get_rank() == 0:
            return str(outcome(lambda: dist.all_reduce(vector, group=group)))
        said = outcome(lambda: dist.all_gather_into_tensor(torch.ones(8), vector, group=group))
        dist.destroy_process_group(group)
        Path(closed).touch()
        return str(said)
    finally:
        del os.environ[VARIABLE], os.environ["CLOSED"]


def test_a_mismatch_is_named_though_the_other_rank_has_closed(tmp_path: Path) -> None:
    for said in on_group(2, close_early, str(tmp_path / "closed")):
        assert "mismatch: " in said, said


def wait_in_vain() -> str:
    if dist.get_rank() == 0:
        return str(outcome(dist.barrier))
    receive: Any = dist.irecv(torch.ones(1), 0)
    return str(outcome(receive.wait, timedelta(seconds=LIMIT)))


def test_a_wait_that_is_over_says_who_waits_where() -> None:
    for said in on_group(2, wait_in_vain, limit=3.0):
        assert "Timed out waiting 3000ms: rank 0 waits in barrier at ranks.py:" in said
        assert "for rank 1 (last heard of in recv of (1,) float32 from rank 0 at test_groups.py:" in said


# Which all-reduce


def add_up(vector: torch.Tensor, transport: Any) -> None:
    """A student's."""
    ring_all_reduce(vector, transport)
    transport.recorder.meters["calls"] = transport.recorder.meters.get("calls", 0) + 1


def chosen(name: str) -> Any:
    os.environ[VARIABLE] = name
    try:
        group: Any = dist.new_group([0, 1, 2])
        vector = torch.arange(1000.0)
        dist.all_reduce(vector, group=group)
        same = bool((vector == 3 * torch.arange(1000.0)).all())
        return same, group.collectives.recorder.meters.get("calls", 0)
    finally:
        del os.environ[VARIABLE]


@pytest.mark.parametrize(("name", "calls"), [("swing", 0), (f"{__name__}:add_up", 1)])
def test_the_environment_names_the_all_reduce(name: str, calls: int) -> None:
    assert on_group(3, chosen, name) == [(True, calls)] * 3


def count_messages() -> tuple[list[int], list[float]]:
    group: Any = dist.new_group([0, 1, 2])
    counts, vectors = [], [torch.full((numel,), 0.1 * (1 + dist.get_rank())) for numel in (1000, 100_000)]
    for vector in vectors:
        before = group.collectives.messages_sent.total()
        dist.all_reduce(vector, group=group)
        counts.append(group.collectives.messages_sent.total() - before)
    return counts, [float(vector.sum()) for vector in vectors]


def test_short_vectors_are_added_up_in_one_round_and_others_in_the_ring() -> None:
    ranks = on_group(3, count_messages)
    assert [counts for counts, _ in ranks] == [[2, 4]] * 3
    assert len({tuple(sums) for _, sums in ranks}) == 1  # the same bits on all ranks


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("swingg", "GRADWIRE_ALL_REDUCE=swingg: is no all-reduce; did you mean swing?"),
        ("nowhere:f", "GRADWIRE_ALL_REDUCE=nowhere:f: No module named 'nowhere'; give MODULE:NAME"),
        ("os:sep", "GRADWIRE_ALL_REDUCE=os:sep: is neither a strategy nor a function of (vector, transport)"),
    ],
)
def test_what_is_no_all_reduce_is_told(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwire.backend.chosen import chosen_all_reduce

    monkeypatch.setenv(VARIABLE, name)
    kind, text = outcome(chosen_all_reduce)
    assert (kind, says in text) == ("UsageError", True), text
