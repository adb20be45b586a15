"""A first run with a codec, with nothing given but the two names, learns nearly as well as without."""

import pytest

from benchmarks.codec_defaults import SEEDS, accuracies, pairs

POINTS = 0.03


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_codec_that_keeps_much_back_learns_on_a_ring_of_3() -> None:
    found, expected = (accuracies("ring_all_reduce", name, 3, SEEDS[0])["accuracy_20"] for name in ("random_k", "none"))
    assert found >= expected - POINTS


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", dict.fromkeys(strategy for strategy, _ in pairs()))
def test_every_codec_learns(strategy: str, seed: int) -> None:
    found = {codec: accuracies(strategy, codec, 4, seed)["accuracy_20"] for one, codec in pairs() if one == strategy}
    assert {codec: value for codec, value in found.items() if not value >= found["none"] - POINTS} == {}


@pytest.mark.slow
@pytest.mark.end_to_end
def test_every_codec_learns_with_a_server() -> None:
    test_every_codec_learns("param_server", SEEDS[0])
