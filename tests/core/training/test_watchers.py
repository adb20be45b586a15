"""Watchers: of which moments of a run they are told, on which ranks, and what becomes of what they return."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from gradwire import run
from gradwire.core.training.rank import Rank
from gradwire.core.training.watchers import Watcher
from gradwire.core.training.wing import Record, Wing
from gradwire.options import Options
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import ParamServer
from tests.runs import SMALL, metadata

MOMENTS = [name for name in vars(Watcher) if not name.startswith("_") and name not in ("name", "end_run")]
STEP = ["begin_step", "batch_ready", "gradient_ready", "end_step"]


class Told(Watcher):
    """Notes each moment."""

    name = "told"

    def begin_run(self, rank: Rank) -> None:
        self.moments = ["begin_run"]
        rank.stack.callback(lambda: LEFT.append(rank.transport.rank))

    def end_run(self, rank: Rank) -> list[str]:
        return self.moments


def note(moment: str) -> Callable[..., None]:
    return lambda watcher, rank, *_: watcher.moments.append(moment)


for moment in set(MOMENTS) - {"begin_run"}:
    setattr(Told, moment, note(moment))
LEFT: list[int] = []


class Mine(Wing):
    """A wing of a test's own."""

    def watchers(self, options: Any) -> list[Watcher]:
        return [Told()]

    def record(self, options: Any, record: Record) -> None:
        record.facts["told"] = record.found("told")

    def summary(self, options: Any, facts: Mapping[str, Any]) -> list[str]:
        return [f"told           {len(facts['told'])} ranks"]


@dataclass(frozen=True, kw_only=True)
class WithMine(Options):
    """The options of a run that is told of."""

    wings = (*Options.wings, Mine())


def test_a_watcher_is_told_of_each_moment_on_every_rank_and_its_wing_gets_what_it_returns(
    tmp_path: Path, capsys: Any
) -> None:
    LEFT.clear()
    options = WithMine(strategy=ParamServer(), n_gpus=3, **SMALL | {"results_dir": str(tmp_path)})
    run(options, launcher=VirtualTime(OneSwitch(3, 1e9, 1e-5), lambda *_: 0.0).launcher())
    told = metadata(tmp_path)["told"]
    steps = told["1"].count("begin_step")
    epochs = ["begin_epoch", *STEP * (steps // 2), "end_steps", "end_epoch"] * 2
    assert steps > 2
    assert told["1"] == told["2"] == ["begin_run", "before_start", "after_start", *epochs]
    assert [moment for moment, _ in groupby(told["0"])] == [
        "begin_run", "before_start", "after_start", *["begin_epoch", "end_step", "end_steps", "end_epoch"] * 2
    ]  # fmt: skip
    assert told["0"].count("end_step") == steps, "a server is told of its updates"
    assert {*told["0"], *told["1"]} == {*MOMENTS}
    assert sorted(LEFT) == [0, 1, 2], "what a watcher has entered is left"
    assert "told           3 ranks" in capsys.readouterr().out
