"""Asynchronous local SGD: the kept table is what the code finds; at one common rate its order is the published one."""

import pandas as pd
import pytest

from benchmarks.async_local_sgd import OUT, RATES, SEEDS, VARIANTS, compare, summary

KEPT = pd.read_csv(OUT)
COMMON = 3.0  # outer learning rate


def test_the_kept_table_is_what_the_code_finds() -> None:
    assert len(KEPT) == len(VARIANTS) * len(RATES) * len(SEEDS)
    assert all(variant in summary(KEPT) for variant in VARIANTS)
    delayed = [*VARIANTS][-1]
    (kept,) = KEPT.query("variant == @delayed and outer_lr == @RATES[1] and seed == @SEEDS[0]").to_dict("records")
    assert compare(delayed, RATES[1], SEEDS[0]) == pytest.approx(kept, rel=0.01)


def test_at_one_rate_momentum_makes_asynchronous_worse_and_its_delay_repairs_that() -> None:
    loss = KEPT[KEPT["outer_lr"] == COMMON].pivot_table("test_loss", "seed", "variant")[[*VARIANTS]]
    for _, (synchronous, asynchronous, with_momentum, asynchronous_with_momentum, delayed) in loss.iterrows():
        assert asynchronous < synchronous
        assert with_momentum < asynchronous_with_momentum
        assert abs(delayed - with_momentum) < 0.5 * (asynchronous_with_momentum - with_momentum)


def test_nobody_waits_for_the_slowest_worker() -> None:
    seconds = KEPT.groupby("variant")["virtual_s"].max()
    assert all(
        seconds[variant] < seconds["synchronous, Nesterov"] / 3 for variant in VARIANTS if variant.startswith("async")
    )
