"""Goodput under failures: the kept table is what the code finds, and what a synchronous run would lose is counted."""

import pandas as pd
import pytest

from benchmarks.goodput import (
    EVERY,
    FRAGMENTS,
    LEARNERS,
    OUT,
    REPAIRS,
    SECONDS,
    SEEDS,
    compare,
    decoupled,
    failures,
    summary,
    synchronous,
)

KEPT = pd.read_csv(OUT)


def test_the_kept_table_is_what_the_code_finds() -> None:
    assert len(KEPT) == len(REPAIRS) * len(SEEDS)
    assert len(summary(KEPT).splitlines()) == len(REPAIRS) + 4
    kept = KEPT.iloc[-1].to_dict()
    assert compare(REPAIRS[-1], SEEDS[-1], decoupled(0.0, [])) == pytest.approx(kept, rel=1e-4)


def test_learners_that_do_not_wait_lose_little_more_than_the_time_of_their_repair() -> None:
    assert (KEPT["synchronous"] < KEPT["decoupled"]).all()
    lost = KEPT["learners_up"] - KEPT["decoupled"]
    assert (lost > 0).all()
    assert (lost < 100 * (EVERY + 2) / SECONDS).all(), "what a learner has not sent when it dies"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_learner_is_back_before_the_end(seed: int) -> None:
    deaths = failures(REPAIRS[-1], seed)
    assert len(set(deaths)) == LEARNERS
    assert 0 <= min(deaths) < max(deaths) < SECONDS - REPAIRS[-1]


@pytest.mark.parametrize(
    ("deaths", "lost"),
    [
        ([], 0.0),
        ([EVERY * FRAGMENTS + 5.0], 5.0 + 10.0),  # what is not in the checkpoint, and the repair
        ([5.0, 9.0], 5.0 + 14.0),  # both are repaired, the second 4 s later
        ([5.0, 15.0 + EVERY * FRAGMENTS], 5.0 + 10.0 + 10.0),  # a round after the first repair
    ],
)
def test_a_synchronous_run_waits_for_repairs_and_repeats_what_no_checkpoint_has(
    deaths: list[float], lost: float
) -> None:
    assert synchronous(10.0, deaths) == SECONDS + lost
