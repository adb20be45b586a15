"""The law of lab 7, held against codes that were made here: what loses nothing is right, whichever of equal is sent."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons.lab import Case, Run, Vectors
from lessons.labs.codes import STEPS, first_fault
from lessons.solutions.compression import compress, decompress


def made(case: Case, k: int, seed: int) -> Run:
    """Return a run of which every rank holds what the solution gives, for vectors of small whole numbers."""
    generator = torch.Generator().manual_seed(seed)
    inputs: list[Vectors] = []
    for _ in range(case.n):
        vectors = torch.randint(-3, 4, (STEPS + 1, case.length), generator=generator).to(case.dtype)
        named = {f"g{s}": vectors[s] for s in range(1, STEPS + 1)}
        inputs.append({"kept0": vectors[0], "k": torch.tensor([k])} | named)
    results: list[Vectors] = [{} for _ in range(case.n)]
    for given_to, result in zip(inputs, results, strict=True):
        residual = given_to["kept0"].clone()
        for s in range(1, STEPS + 1):
            indices, values = compress(given_to[f"g{s}"], residual, k)
            result |= {f"indices{s}": indices.long(), f"values{s}": values, f"kept{s}": residual.clone()}
            result |= {f"decoded{s}": decompress(indices, values, case.length), f"left{s}": residual.clone()}
    for s in range(1, STEPS + 1):
        mean = torch.stack([result[f"decoded{s}"] for result in results]).mean(0)
        for result in results:
            result[f"mean{s}"] = mean.clone()
    return Run(case, inputs, results=results)


runs = st.builds(
    made,
    st.builds(Case, st.integers(1, 4), st.integers(1, 30), st.sampled_from([torch.float32, torch.float64])),
    st.integers(1, 33),
    st.integers(0, 2**32),
)
places = st.tuples(st.integers(0, 2**16), st.integers(1, STEPS), st.integers(0, 2**16))


@settings(deadline=None)
@given(runs)
def test_what_loses_nothing_is_right(run: Run) -> None:
    assert first_fault(run) == ""


@settings(deadline=None)
@given(runs, places, st.sampled_from(["kept", "values", "decoded", "mean", "left"]))
def test_one_element_that_is_another_is_found(run: Run, place: tuple[int, int, int], what: str) -> None:
    rank, s, i = place[0] % run.case.n, place[1], place[2]
    vector = run.results[rank][f"{what}{s}"]
    vector[i % len(vector)] += 1
    assert f"step {s}: rank {rank}: " in first_fault(run)
