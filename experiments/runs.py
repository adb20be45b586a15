"""The runs behind the notebooks, declared: what is compared, on what, how long, with which seeds.

Everything that makes a comparison fair is here, in one place: the same data, seeds, model, optimizer, learning rate and
global batch for both sides of it, and a parameter server's N ranks counted as the N - 1 workers that they are.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from param_server_builtin import BuiltinParamServer
from records.files import load_metadata, load_table, machine
from records.tables import finished_epochs
from ring_all_reduce_builtin import BuiltinRingAllReduce
from training import Options
from training.options import option_names

BUILTIN = {kind.name: kind for kind in (BuiltinParamServer, BuiltinRingAllReduce)}
MODELS = {"cnn": "lenet", "mlp": "benchmarks.networks:mlp"}  # 108 thousand parameters; 5.8 million
EPOCHS = {"cnn": 6, "mlp": 3}
BATCH = 128
SEEDS = (0, 1, 2)
SIZES = {1_000: 12, 10_000: 8}  # of the training set, besides all of it, and their epochs
TIMELINE = "timeline"
_TIMELINE_SIZE = 20 * BATCH


@dataclass(frozen=True)
class Case:
    """One thing that is measured, with each of the seeds."""

    strategy: str
    n_gpus: int
    model: str = "cnn"
    global_batch_size: int = BATCH
    train_size: int = 0


# The strategies whose scaling is measured, and the numbers of ranks.
LINES: dict[str, tuple[int, ...]] = {
    "single": (1,),
    "param_server": (2, 3, 4),
    "ring_all_reduce": (2, 4),
    "ring_all_reduce_builtin": (2, 4),
    "none": (2, 4),
}
TWO_WORKERS = {strategy: 3 if strategy == "param_server" else ranks[0] for strategy, ranks in LINES.items()}


def strong(strategy: str, n_gpus: int) -> Case:
    """Return the case of strong scaling: the global batch is the same, whatever the number of workers."""
    return Case(strategy, n_gpus)


def weak(strategy: str, n_gpus: int) -> Case:
    """Return the case of weak scaling: every worker has the same batch."""
    workers = n_gpus - 1 if strategy == "param_server" else n_gpus
    return Case(strategy, n_gpus, global_batch_size=workers * BATCH // 2)


def _param_server() -> list[Case]:
    both = (("param_server", 3), (BuiltinParamServer.name, 2))
    return [*(Case(*one, model) for model in MODELS for one in both), *(strong("param_server", n) for n in (2, 4))]


def _ring_all_reduce() -> list[Case]:
    both = ("ring_all_reduce", BuiltinRingAllReduce.name)
    return [
        *(Case(strategy, 2, model) for model in MODELS for strategy in both),
        *(strong(strategy, 4) for strategy in (*both, "naive_all_reduce")),
    ]


def _scaling() -> list[Case]:
    every = [(strategy, n) for strategy, ranks in LINES.items() for n in ranks]
    sizes = [Case(strategy, n, train_size=size) for size in SIZES for strategy, n in TWO_WORKERS.items()]
    return [*(strong(*one) for one in every), *(weak(*one) for one in every), *sizes]


EXPERIMENTS = {"param_server": _param_server, "ring_all_reduce": _ring_all_reduce, "scaling": _scaling}
# Short runs whose events are kept, to be drawn: two workers each.
TIMELINES = {"param_server": 3, "ring_all_reduce": 2}


def declared(experiment: str, quick: bool = False) -> list[Options]:
    """Return the runs of an experiment, or of "all", each once; the strategies take turns, seed by seed.

    `quick`: the same runs on scikit-learn's digits, three epochs.
    """
    chosen = list(EXPERIMENTS) if experiment == "all" else [experiment]
    cases = dict.fromkeys(case for name in chosen for case in EXPERIMENTS[name]())
    runs = [_options(case, seed) for seed in SEEDS for case in cases]
    runs += [_timeline(name) for name in chosen if name in TIMELINES]
    return [_quick(run) for run in runs] if quick else runs


def _options(case: Case, seed: int) -> Options:
    size = case.train_size or "all"
    return Options(
        strategy=case.strategy,
        n_gpus=case.n_gpus,
        model=MODELS[case.model],
        dataset="fashion_mnist",
        train_size=case.train_size,
        global_batch_size=case.global_batch_size,
        epochs=SIZES.get(case.train_size, EPOCHS[case.model]),
        lr=0.02,
        momentum=0.9,
        seed=seed,
        run_name=f"{case.model}-{case.strategy}-{case.n_gpus}-b{case.global_batch_size}-{size}-s{seed}",
        builtin=BUILTIN.get(case.strategy),
    )


def _timeline(strategy: str) -> Options:
    run = _options(Case(strategy, TIMELINES[strategy], "mlp"), SEEDS[0])
    return replace(run, train_size=_TIMELINE_SIZE, epochs=1, run_name=f"{TIMELINE}-{strategy}-{run.n_gpus}")


def _quick(run: Options) -> Options:
    sizes = dict(zip(SIZES, (300, 600), strict=True)) | {_TIMELINE_SIZE: 1_280}  # digits has 1,437 for training
    size = sizes.get(run.train_size, run.train_size)
    # The name differs, so that no quick run ever takes the place of a long one.
    return replace(run, dataset="digits", train_size=size, epochs=min(run.epochs, 3), run_name=f"{run.run_name}-quick")


def hardware(device: str) -> str:
    """Return the name of the folder for results of this machine's `device`: cpu or cuda."""
    here = machine()
    gpus, cores = here["gpus"], here["cores"]
    name = f"{len(gpus)} {gpus[0]}" if device == "cuda" else f"{here['cpu']} {cores} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


MEASURED = (
    *("strategy", "n_gpus", "model", "dataset", "train_size", "global_batch_size", "epochs", "device", "dtype"),
    *("optimizer", "lr", "momentum", "weight_decay", "clip_norm", "accumulate", "seed", "events"),
)
"""Options that make a run what it is; the records of every run have them."""
_ELSEWHERE = (
    *("data_dir", "download", "timeout", "results_dir", "run_name", "save"),
    *("checkpoint_dir", "checkpoint_keep"),
)
"""Options that do not: where the files are, and how long a wait may take."""


def measured(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the recorded options that make a run what it is.

    An option that the records do not have yet had the value that is its default now. Raises KeyError if one of
    MEASURED is missing.
    """
    defaults = {name: field.default for name, field in Options.__dataclass_fields__.items()}
    values = {name: recorded[name] for name in MEASURED}
    for name in option_names():
        if name not in (*MEASURED, *_ELSEWHERE):
            values[name] = recorded.get(name, defaults[name])
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def same_run(options: Options, recorded: Mapping[str, Any]) -> bool:
    """Return whether a run with the options in `recorded` measured what `options` ask for."""
    try:
        return measured(recorded) == measured(options.recorded())
    except KeyError:
        return False


def is_there(options: Options) -> bool:
    """Return whether this very run is there, whole and good: its files, what it measured, and that it did not fail."""
    path = Path(options.results_dir) / f"{options.run_name}"
    try:
        metadata, table = load_metadata(f"{path}.json"), load_table(f"{path}.csv")
        good = metadata["replicas_identical"] or not options.kind.replicas_agree
        return good and same_run(options, metadata["options"]) and finished_epochs(table) == options.epochs
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
