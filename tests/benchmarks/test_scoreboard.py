"""The grid on which the project's strategies are tuned for the scoreboard: options that exist, of entries that run."""

import pytest

from benchmarks.scoreboard import ADAM, OTHERS, VALUES
from gradwire.scoreboard import game
from gradwire.scoreboard.entry import ENTRIES, find


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_every_strategy_takes_the_options_of_its_grid(name: str) -> None:
    assert {*VALUES} <= {*ENTRIES}
    base, rates = OTHERS.get(name, ADAM)
    for value in VALUES.get(name, ("",)):
        entry = find(name, {"fast": f"{base} --lr {rates[0]} {value}"})
        assert 0 < game.play(entry, "fast", 0, 20, 5.0).seconds < 5
