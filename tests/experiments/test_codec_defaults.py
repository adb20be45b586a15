"""A first run with a codec, with nothing given but the two names, learns nearly as well as without."""

import pytest

from experiments.codec_defaults import SEEDS, accuracies, pairs

POINTS = 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "codec", "n_gpus"),
    [
        ("param_server", "random_k", 4),
        pytest.param("ring_all_reduce", "random_k", 3, marks=pytest.mark.exhaustive),
    ],
)
def test_a_codec_that_keeps_much_back_learns(strategy: str, codec: str, n_gpus: int) -> None:
    found, expected = (accuracies(strategy, name, n_gpus, 0)[1] for name in (codec, "none"))
    assert found >= expected - POINTS


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", dict.fromkeys(strategy for strategy, _ in pairs()))
def test_every_codec_learns(strategy: str, seed: int) -> None:
    found = {codec: accuracies(strategy, codec, 4, seed)[1] for one, codec in pairs() if one == strategy}
    assert {codec: value for codec, value in found.items() if not value >= found["none"] - POINTS} == {}


@pytest.mark.slow
@pytest.mark.end_to_end
def test_every_codec_learns_with_a_server() -> None:
    test_every_codec_learns("param_server", SEEDS[0])
