"""The runs behind the notebooks, declared: what is compared, on what, how long, with which seeds.

Everything that makes a comparison fair is here, in one place: the same data, seeds, model, optimizer, learning rate and
global batch for both sides of it, and a parameter server's N ranks counted as the N - 1 workers that they are.
"""

import re
from dataclasses import dataclass, replace

from param_server_builtin import BuiltinParamServer
from records.machine import machine
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import Strategy
from training import Options, names

BUILTIN: dict[str, type[Strategy]] = {kind.name: kind for kind in (BuiltinParamServer, BuiltinRingAllReduce)}
MODELS = {"cnn": "lenet", "mlp": "benchmarks.networks:mlp"}  # 108 thousand parameters; 5.8 million
EPOCHS = {"cnn": 4, "mlp": 2}
BATCH = 128
SEEDS = (0, 1, 2)
_FIRST_TRY_SIZE = 20 * BATCH
SIZES = {1_000: 8, 10_000: 4}  # of the training set, besides all of it, and their epochs
_EPOCHS_OF_SIZE = SIZES | {_FIRST_TRY_SIZE: 2}
_QUICK_MODELS = {MODELS["cnn"]: "benchmarks.networks:cnn"}  # learns on pictures of 8 x 8 pixels, too
_QUICK_EPOCHS = {"benchmarks.networks:cnn": 6, MODELS["mlp"]: 3}
LABELS = {option: label for label, option in MODELS.items()} | {"benchmarks.networks:cnn": "cnn"}
"""What the models of the runs are called."""
TIMELINE = "timeline"
_TIMELINE_SIZE = 20 * BATCH


def strategy_class(name: str) -> type[Strategy]:
    """Return the class of a strategy, which may be a baseline. Raises UsageError."""
    return BUILTIN[name] if name in BUILTIN else names.strategy_class(name)


@dataclass(frozen=True)
class Case:
    """One thing that is measured, with each of the seeds."""

    strategy: str  # its name; it has the defaults of its options
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
WEAK_LINES = {strategy: ranks for strategy, ranks in LINES.items() if strategy not in ("param_server",)}
TWO_WORKERS = {strategy: 3 if strategy == "param_server" else ranks[0] for strategy, ranks in LINES.items()}


# What a first try compares: many ranks, a large network, few steps.
FIRST_TRY = [Case(strategy, 8, "mlp", train_size=_FIRST_TRY_SIZE) for strategy in ("param_server", "ring_all_reduce")]


def strong(strategy: str, n_gpus: int) -> Case:
    """Return the case of strong scaling: the global batch is the same, whatever the number of workers."""
    return Case(strategy, n_gpus)


def weak(strategy: str, n_gpus: int) -> Case:
    """Return the case of weak scaling: every worker has the same batch."""
    return Case(strategy, n_gpus, global_batch_size=workers(strategy, n_gpus) * BATCH // 2)


def workers(strategy: str, n_gpus: int) -> int:
    """Return how many of the ranks compute."""
    return strategy_class(strategy)().count_workers(n_gpus)


def _param_server() -> list[Case]:
    both = (("param_server", 3), (BuiltinParamServer.name, 2))
    servers = [strong("param_server", n) for n in (2, 4)]
    return [*(Case(*one, model) for model in MODELS for one in both), *servers, *FIRST_TRY]


def _ring_all_reduce() -> list[Case]:
    both = ("ring_all_reduce", BuiltinRingAllReduce.name)
    return [
        *(Case(strategy, 2, model) for model in MODELS for strategy in both),
        *(strong(strategy, 4) for strategy in (*both, "naive_all_reduce")),
    ]


def _scaling() -> list[Case]:
    every, weakly = ([(name, n) for name, ranks in lines.items() for n in ranks] for lines in (LINES, WEAK_LINES))
    sizes = [Case(strategy, n, train_size=size) for size in SIZES for strategy, n in TWO_WORKERS.items()]
    return [*(strong(*one) for one in every), *(weak(*one) for one in weakly), *sizes]


EXPERIMENTS = {"param_server": _param_server, "ring_all_reduce": _ring_all_reduce, "scaling": _scaling}
# Short runs whose events are kept, to be drawn: two workers each.
TIMELINES = {"param_server": 3, "ring_all_reduce": 2}


def declared(experiment: str, quick: bool = False) -> list[Options]:
    """Return the runs of an experiment, each once; the strategies take turns, seed by seed.

    `quick`: the same cases on digits, with one seed.
    """
    seeds = SEEDS[:1] if quick else SEEDS
    cases = dict.fromkeys(EXPERIMENTS[experiment]())
    runs = [_options(case, seed) for seed in seeds for case in cases]
    runs += [_timeline(experiment)] if experiment in TIMELINES else []
    return [_quick(run) for run in runs] if quick else runs


def _options(case: Case, seed: int) -> Options:
    size = case.train_size or "all"
    return Options(
        strategy=strategy_class(case.strategy)(),
        n_gpus=case.n_gpus,
        model=MODELS[case.model],
        dataset="fashion_mnist",
        train_size=case.train_size,
        global_batch_size=case.global_batch_size,
        epochs=_EPOCHS_OF_SIZE.get(case.train_size, EPOCHS[case.model]),
        lr=0.02,
        momentum=0.9,
        seed=seed,
        run_name=f"{case.model}-{case.strategy}-{case.n_gpus}-b{case.global_batch_size}-{size}-s{seed}",
    )


def _timeline(experiment: str) -> Options:
    strategy = experiment
    run = _options(Case(strategy, TIMELINES[strategy], "mlp"), SEEDS[0])
    return replace(run, train_size=_TIMELINE_SIZE, epochs=1, run_name=f"{TIMELINE}-{strategy}-{run.n_gpus}")


def _quick(run: Options) -> Options:
    """Return the run on digits, with so many epochs that a network learns something."""
    sizes = dict(zip(SIZES, (300, 600), strict=True)) | {_TIMELINE_SIZE: 1_280}  # digits has 1,437 for training
    size = sizes.get(run.train_size, run.train_size)
    model = _QUICK_MODELS.get(run.model, run.model)
    epochs = run.epochs if size == sizes[_TIMELINE_SIZE] else _QUICK_EPOCHS[model]
    name = f"{run.run_name}-quick"  # so that no quick run is ever taken for a long one
    return replace(run, dataset="digits", model=model, train_size=size, epochs=epochs, lr=0.1, run_name=name)


def hardware(device: str) -> str:
    """Return the name of the folder for results of this machine's `device`: cpu or cuda."""
    here = machine()
    gpus, cores = here["gpus"], here["cores"]
    name = f"{len(gpus)} {gpus[0]}" if device == "cuda" else f"{here['cpu']} {cores} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
