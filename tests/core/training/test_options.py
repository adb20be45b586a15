"""Options: a strategy is one of them with its own, defaults are of whom they should be, and all are recorded."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from gradwire import Options
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import resolve
from gradwire.core.training.options import RunOptions
from gradwire.recorded import options_from
from strategies import STRATEGIES
from tests.runs import KINDS, n_gpus_of, small, strategy_of
from tests.strategies.kinds import other_value

OWN_DEFAULTS = [(name, option) for name, kind in KINDS.items() for option in kind.traits.defaults]


@pytest.mark.parametrize(("name", "option"), OWN_DEFAULTS)
def test_a_strategys_default_stands_unless_one_is_given(name: str, option: str) -> None:
    own, strategy = KINDS[name].traits.defaults[option], strategy_of(name)
    common = getattr(Options(), option)
    assert getattr(Options(strategy=strategy), option) == own
    for value in (common, own):
        given = Options(strategy=strategy, **{option: value})
        assert getattr(given, option) == value, "explicit, it is kept, even where it is the common default"
        assert getattr(dataclasses.replace(given, epochs=3), option) == value
        assert getattr(pickle.loads(pickle.dumps(given)), option) == value


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_recorded_makes_the_same_options(tmp_path: Path, name: str) -> None:
    kind = STRATEGIES[name]
    strategy = kind(**{option.name: other_value(kind(), option.name) for option in dataclasses.fields(kind)})
    options = resolve(small(tmp_path, strategy, n_gpus=n_gpus_of(name, 3), momentum=0.9, slow=()))
    recorded = json.loads(json.dumps(options.recorded()))
    assert options_from(recorded, "run.json", given=recorded) == options
    assert set(recorded) == {"strategy", *(option.name for option in dataclasses.fields(RunOptions))} | set(recorded)
    again = options_from(recorded, "run.json", new=["momentum"], given=recorded)
    assert again.momentum == kind.traits.defaults.get("momentum", 0.9), "what is new has the strategy's default"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_push": "many"}, "has 'many' for --n_push"),
        ({"seed": True}, "has True for --seed"),
        ({"slow": "1:2"}, "has '1:2' for --slow"),
        ({"n_pull": 3}, "^run.json: has --n_pull, which downpour has not: written by"),
    ],
)
def test_options_of_another_type_or_that_no_run_has_today_were_not_written_here(
    changes: dict[str, Any], said: str
) -> None:
    recorded = json.loads(json.dumps(Options(strategy=STRATEGIES["downpour"]()).recorded())) | changes
    with pytest.raises(UsageError, match=said):
        options_from(recorded, "run.json")
