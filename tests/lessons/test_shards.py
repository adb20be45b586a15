"""The partition of lab 8, held against steps that were made here: any cut of x over the ranks is right."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons.lab import Case, Run, Vectors
from lessons.labs.param_server import one_process
from lessons.labs.sharding import STEPS, Optimizer, Sharding


def made(n: int, length: int, cuts: list[int], seed: int) -> Run:
    """Return a run in which rank r has updated the elements between two cuts, and all hold the x of one process."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, generator=generator, dtype=torch.float64)
    inputs = [{"x": x, "c": torch.randn(length, generator=generator, dtype=torch.float64)} for _ in range(n)]
    run = Run(Case(n, length, torch.float64), inputs)
    bounds = [0, *sorted(cut % (length + 1) for cut in cuts[: n - 1]), length]
    xs = one_process(run.inputs, STEPS)
    for start, stop in pairwise(bounds):
        result: Vectors = {}
        for s in range(1, STEPS + 1):
            mean = torch.stack([xs[s - 1] - one["c"] for one in inputs]).mean(0)
            updated = torch.zeros(length, dtype=torch.bool)
            updated[start:stop] = True
            result |= {f"x{s}": xs[s].clone(), f"g{s}": mean, f"given{s}": mean * updated, f"updated{s}": updated}
            result[f"of_copies{s}"] = torch.tensor(0)
        run.results.append(result)
    return run


runs = st.builds(
    made,
    st.integers(2, 5),
    st.integers(1, 30),
    st.lists(st.integers(0, 2**16), min_size=4, max_size=4),
    st.integers(0, 2**32),
)


@settings(deadline=None)
@given(runs)
def test_any_cut_of_x_is_right(run: Run) -> None:
    assert Sharding().find_fault(run) == ""


@settings(deadline=None)
@given(runs, st.integers(0, 2**16), st.integers(1, STEPS))
def test_an_element_that_nobody_updates_or_two_do_is_found(run: Run, element: int, s: int) -> None:
    i = element % run.case.length
    (owner,) = [result for result in run.results if result[f"updated{s}"][i]]
    other = next(result for result in run.results if result is not owner)
    other[f"given{s}"][i], other[f"updated{s}"][i] = owner[f"given{s}"][i], True
    assert f"both updated element {i} of x" in Sharding().find_fault(run)
    other[f"updated{s}"][i] = owner[f"updated{s}"][i] = False
    assert f"no rank updated element {i} of x" in Sharding().find_fault(run)


@settings(deadline=None)
@given(runs, st.integers(0, 2**16), st.integers(1, STEPS))
def test_an_x_that_is_another_is_found(run: Run, element: int, s: int) -> None:
    rank = element % run.case.n
    run.results[rank][f"x{s}"][element % run.case.length] += 1
    assert f"step {s}: rank {rank} holds" in Sharding().find_fault(run)


def test_the_optimizer_keeps_the_state_of_what_it_has_updated() -> None:
    x, g = torch.zeros(10), torch.ones(10)
    optimizer = Optimizer(x, g, rank=0)
    for _ in range(3):
        optimizer.update(x[2:5], torch.ones(3))
    assert optimizer.elements == 3
    optimizer.update(x, g)
    assert optimizer.elements == 13
    optimizer.update(x[2:5].clone(), torch.ones(3))
    assert (optimizer.elements, optimizer.of_copies) == (13, 1)
    assert x[2] < x[0] < 0, "momentum"
