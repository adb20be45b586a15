"""What may be another one when a run is resumed or replayed: each option says it itself, by its metadata."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradwire import Options, run
from gradwire.checkpoints.folder import latest
from gradwire.compression import Float16, NoCodec
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE, MAY_CHANGE_ON_RESUME
from gradwire.core.training.checks import prepare, resolve
from strategies import AsyncParamServer, Downpour, Strategy
from tests.ranks import virtual_time
from tests.runs import small
from tests.strategies.kinds import other_value
from tests.workload import moons

pytestmark = pytest.mark.xdist_group("preflight")  # a run of the module is made once

__all__ = ["moons"]  # the same data set by another name
OTHER: dict[str, Any] = {
    "n_gpus": 5, "batch_size": 8, "global_batch_size": 40, "epochs": 3, "lr": 0.2, "momentum": 0.4,
    "weight_decay": 0.1, "decay": "matrices", "amp": "bf16", "optimizer": "adam", "codec_scope": "vector",
    "optimizer_options": ("dampening=0.1",), "lr_schedule": "cosine",
    "warmup": 1.0, "clip_norm": 2.0, "accumulate": 2, "dtype": "float64", "seed": 3, "slow": ("1:2",), "jitter": 0.1,
    "timeout": 31.0, "bandwidth": "1gbit", "latency": "1ms",
    "restarts": 1, "dataset": f"{__name__}:moons", "data_dir": "elsewhere", "download": True, "train_size": 100,
    "task": "tests.tasks:masked",
    "image_size": 32, "augment": False, "loader": "dali", "loader_workers": 2,
    "model": "mlp", "events": False, "hashes": True, "memory": True, "checkpoint_every": 3, "checkpoint_keep": 2,
}  # fmt: skip
PLACES = (
    "device", "launcher", "scheduler", "results_dir", "run_name", "save", "replay", "resume", "checkpoint_dir",
    "evaluator", "tensorboard", "context", "model_options", "network",
)  # fmt: skip
"""Options that no test changes here: some need another device, dataset or strategy, the others say where."""


@dataclass(kw_only=True)
class WithMore(AsyncParamServer):
    """The asynchronous server with two options more, which no list knows of."""

    fixed: int = 1
    """Decides the result."""
    free: int = dataclasses.field(default=1, metadata=MAY_CHANGE_ON_RESUME)
    """May change."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Strategy], Options]:
    """Make a run with a checkpoint in the middle, once for a strategy; return its resolved options."""
    known: dict[str, Options] = {}

    def made(strategy: Strategy) -> Options:
        if strategy.name not in known:
            folder = tmp_path_factory.mktemp("run")
            options = resolve(
                small(folder, strategy, n_gpus=4, epochs=2, checkpoint_every=3, codec=Float16(), weight_decay=0.01)
            )
            run(options, quiet=True, launcher=virtual_time(4).launcher())
            known[strategy.name] = options
        return known[strategy.name]

    return made


def again(options: Options, how: str, **changes: Any) -> Options:
    """Return the options that resume, or replay, that run."""
    folder = Path(options.results_dir)
    path = str(latest(options.checkpoint_folder)) if how == "resume" else str(folder / "run")
    anew: dict[str, Any] = {"run_name": "again", "checkpoint_every": 0, how: path}
    return dataclasses.replace(options, **(anew | changes))


def checked(options: Options, how: str, name: str, may: bool) -> None:
    if may:
        prepare(resolve(options))
        return
    with pytest.raises(UsageError, match=f"^--{name} .*{'was made with' if how == 'resume' else 'that run had'}.*\\Z"):
        prepare(resolve(options))


RUN_OPTIONS = [option for option in dataclasses.fields(Options) if option.name not in (*PLACES, *Options.choices())]


@pytest.mark.parametrize("how", ["resume", "replay"])
@pytest.mark.parametrize("option", RUN_OPTIONS, ids=lambda option: option.name)
def test_an_option_of_the_run_changes_only_if_it_says_so(
    made: Callable[[Strategy], Options], option: dataclasses.Field[Any], how: str
) -> None:
    may = option.metadata.get(MAY_CHANGE)
    changes = {option.name: OTHER[option.name]}
    allowed = may == "always" or (may == "on resume" and how == "resume")
    checked(again(made(AsyncParamServer()), how, **changes), how, option.name, allowed)


@pytest.mark.parametrize("how", ["resume", "replay"])
def test_an_option_of_a_strategy_changes_only_if_it_says_so_and_the_strategy_not(
    made: Callable[[Strategy], Options], how: str
) -> None:
    owner = WithMore()
    options = made(owner)
    for option in dataclasses.fields(owner):
        changed = dataclasses.replace(options.strategy, **{option.name: other_value(owner, option.name)})
        may = option.metadata.get(MAY_CHANGE)
        allowed = may == "always" or (may == "on resume" and how == "resume")
        checked(again(options, how, strategy=changed), how, option.name, allowed)
    other = again(made(AsyncParamServer()), how, strategy=Downpour(), codec=NoCodec())
    with pytest.raises(UsageError, match=rf"^--{how} .* was made with --strategy async_param_server, not downpour"):
        prepare(resolve(other))
