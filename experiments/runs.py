"""The runs behind the notebooks, declared: what is compared, on what, how long, with which seeds.

Everything that makes a comparison fair is here, in one place: the same data, seeds, model, optimizer, learning rate and
global batch for both sides of it, and a parameter server's N ranks counted as the N - 1 workers that they are.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from param_server_builtin import BuiltinParamServer
from records.files import machine
from ring_all_reduce_builtin import BuiltinRingAllReduce
from training import Options

BUILTIN = {kind.name: kind for kind in (BuiltinParamServer, BuiltinRingAllReduce)}
MODELS = {"cnn": "lenet", "mlp": "benchmarks.networks:mlp"}  # 62 thousand parameters; 5.8 million
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
    timeline: bool = False
    """A short run whose events are kept, to be drawn."""

    def name(self, seed: int) -> str:
        """Return the name of the run's files."""
        size = self.train_size or "all"
        kind = TIMELINE if self.timeline else self.model
        return f"{kind}-{self.strategy}-{self.n_gpus}-b{self.global_batch_size}-{size}-s{seed}"


def _param_server() -> list[Case]:
    return [
        *(Case(strategy, n, model) for model in MODELS for strategy, n in _SERVER_AGAINST_BUILTIN),
        *(Case("param_server", n) for n in (2, 4)),
        Case("param_server", 3, "mlp", train_size=_TIMELINE_SIZE, timeline=True),
    ]


def _ring_all_reduce() -> list[Case]:
    both = ("ring_all_reduce", BuiltinRingAllReduce.name)
    return [
        *(Case(strategy, 2, model) for model in MODELS for strategy in both),
        *(Case(strategy, 4) for strategy in (*both, "naive_all_reduce")),
        Case("ring_all_reduce", 3, "mlp", train_size=_TIMELINE_SIZE, timeline=True),
    ]


def _scaling() -> list[Case]:
    rings = ("ring_all_reduce", BuiltinRingAllReduce.name, "none")
    strong = [
        Case("single", 1),
        *(Case(strategy, n) for n in (2, 4) for strategy in rings),
        *(Case("param_server", n) for n in (2, 3, 4)),
    ]
    per_worker = BATCH // 2
    weak = [
        Case("single", 1, global_batch_size=per_worker),
        *(Case(strategy, n, global_batch_size=n * per_worker) for n in (2, 4) for strategy in rings),
        *(Case("param_server", n, global_batch_size=(n - 1) * per_worker) for n in (2, 3, 4)),
    ]
    sizes = [
        Case(strategy, n, train_size=size)
        for size in SIZES
        for strategy, n in (("single", 1), *((ring, 2) for ring in rings), ("param_server", 3))
    ]
    return [*strong, *weak, *sizes]


_SERVER_AGAINST_BUILTIN = (("param_server", 3), (BuiltinParamServer.name, 2))
EXPERIMENTS = {"param_server": _param_server, "ring_all_reduce": _ring_all_reduce, "scaling": _scaling}


def declared(experiment: str, quick: bool = False) -> list[Options]:
    """Return the runs of an experiment, or of "all", each once; the strategies take turns, seed by seed.

    `quick`: the same runs on scikit-learn's digits, three epochs.
    """
    chosen = EXPERIMENTS.values() if experiment == "all" else [EXPERIMENTS[experiment]]
    cases = dict.fromkeys(case for cases in chosen for case in cases())
    runs = [_options(case, seed) for seed in SEEDS for case in cases if not case.timeline or seed == SEEDS[0]]
    return [_quick(run) for run in runs] if quick else runs


def _options(case: Case, seed: int) -> Options:
    return Options(
        strategy=case.strategy,
        n_gpus=case.n_gpus,
        model=MODELS[case.model],
        dataset="fashion_mnist",
        train_size=case.train_size,
        global_batch_size=case.global_batch_size,
        epochs=1 if case.timeline else SIZES.get(case.train_size, EPOCHS[case.model]),
        lr=0.02,
        momentum=0.9,
        seed=seed,
        run_name=case.name(seed),
        builtin=BUILTIN.get(case.strategy),
    )


def _quick(run: Options) -> Options:
    sizes = dict(zip(SIZES, (300, 600), strict=True)) | {_TIMELINE_SIZE: 1_280}  # digits has 1,437 for training
    size = sizes.get(run.train_size, run.train_size)
    return replace(run, dataset="digits", train_size=size, epochs=min(run.epochs, 3))


def hardware(device: str) -> str:
    """Return the name of the folder for results of this machine's `device`: cpu or cuda."""
    here = machine()
    name = here["gpus"][0] if device == "cuda" else f"{here['cpu']} {here['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def same_run(options: Options, recorded: dict[str, Any]) -> bool:
    """Return whether a run with the options in `recorded` measured what `options` ask for, wherever it was written."""
    measured = ("strategy", "n_gpus", "model", "dataset", "train_size", "global_batch_size", "epochs", "lr", "momentum",
                "optimizer", "weight_decay", "clip_norm", "accumulate", "dtype", "seed", "events")  # fmt: skip
    return all(recorded.get(name, "absent") == getattr(options, name) for name in measured)
