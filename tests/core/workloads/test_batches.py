import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.core.records.errors import UsageError
from gradwire.core.workloads.batches import BatchPlan


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    workers = draw(st.integers(1, 8))
    return BatchPlan(
        n_samples=draw(st.integers(workers, 200)),
        workers=workers,
        global_batch_size=draw(st.integers(workers, 64)),
        seed=draw(st.integers(0, 2**32)),
    )


epochs = st.integers(0, 1000)


@given(plans(), epochs)
def test_each_sample_occurs_once_an_epoch_in_balanced_parts_of_batches_of_the_asked_size(
    plan: BatchPlan, epoch: int
) -> None:
    batches = []
    for step in range(plan.n_steps):
        parts = [plan.part(epoch, step, worker) for worker in range(plan.workers)]
        sizes = [len(part) for part in parts]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        batches.append(torch.cat(parts))
        assert torch.equal(batches[-1], plan.part(epoch, step))
    assert torch.cat(batches).dtype == torch.int64
    assert sorted(torch.cat(batches).tolist()) == list(range(plan.n_samples))
    assert all(len(batch) == plan.global_batch_size for batch in batches[:-1])
    assert len(batches[-1]) < plan.global_batch_size + plan.workers


@given(plans(), epochs)
def test_the_plan_depends_on_seed_and_epoch_alone(plan: BatchPlan, epoch: int) -> None:
    alone = BatchPlan(plan.n_samples, 1, plan.n_samples, plan.seed)
    assert torch.equal(alone.part(epoch, 0), plan.epoch(epoch))
    for other in (
        BatchPlan(1000, 1, 10, plan.seed).epoch(epoch + 1),
        BatchPlan(1000, 1, 10, plan.seed + 1).epoch(epoch),
    ):
        assert not torch.equal(BatchPlan(1000, 1, 10, plan.seed).epoch(epoch), other)


@pytest.mark.parametrize(("n_samples", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 6]), (11, [4, 4, 3]), (3, [3])])
def test_a_remainder_smaller_than_the_workers_joins_the_batch_before(n_samples: int, sizes: list[int]) -> None:
    plan = BatchPlan(n_samples, workers=3, global_batch_size=4, seed=0)
    assert [len(plan.part(0, step)) for step in range(plan.n_steps)] == sizes


@pytest.mark.parametrize(
    ("sizes", "named"), [((3, 4, 8, 0), r"--n_gpus.*--train_size"), ((30, 4, 3, 0), r"--global_batch_size.*4")]
)
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int, int], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        BatchPlan(*sizes)
