"""The runs that measure this machine, declared: setups, data sets, epochs and seeds.

Everything that makes a comparison fair is here: the same data, seeds, model, optimizer, learning rate and global batch
for both sides of it, and a parameter server's N ranks counted as the N - 1 workers that they are. The servers that wait
less have three workers, 64 samples a worker and step, no momentum, and the best learning rate of one grid each.
"""

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from experiments import lost_updates
from experiments.real import TIMELINE, TUNING, Measured, Runs, strategy_class
from gradwire import Options
from gradwire.names import make_strategy as make
from media import draw_ring
from strategies import Strategy

SEEDS = (0, 1, 2)

# Strategies against the built-ins

MODELS = {"cnn": "lenet", "mlp": "benchmarks.networks:mlp"}  # 108 thousand parameters; 5.8 million
LABELS = {option: label for label, option in MODELS.items()} | {"benchmarks.networks:cnn": "cnn"}
EPOCHS = {"cnn": 4, "mlp": 2}
BATCH = 128
_SHORT = 20 * BATCH  # training samples of a first try, and of a timeline
SIZES = {1_000: 8, 10_000: 4}  # of the training set, besides all of it, and their epochs
_EPOCHS_OF_SIZE = SIZES | {_SHORT: 2}
TIMELINES = {"param_server": 3, "ring_all_reduce": 2}  # ranks of short runs that are drawn: two workers each
TARGET, TARGET_OF_SIZES = 0.87, 0.65  # accuracies that are timed, on all and on parts of the training set
RING_TRACE = "ring_trace.csv"  # the exchange that is drawn as an animation


@dataclass(frozen=True)
class Setup:
    """One side of a comparison, which is measured with each of the seeds."""

    strategy: str  # its name; it has the defaults of its options
    n_gpus: int
    model: str = "cnn"
    global_batch_size: int = BATCH
    train_size: int = 0

    @property
    def workers(self) -> int:
        """How many of the ranks compute."""
        return strategy_class(self.strategy)().count_workers(self.n_gpus)

    @property
    def roles(self) -> list[str]:
        """What each process does; DataParallel is one, whatever its n_gpus."""
        return strategy_class(self.strategy)().roles(self.n_gpus)

    @property
    def ranks(self) -> str:
        """How many processes there are, in words."""
        return "1 process" if len(self.roles) == 1 else f"{len(self.roles)} ranks"


# The strategies whose scaling is measured, and the numbers of ranks.
LINES: dict[str, tuple[int, ...]] = {
    "single": (1,), "param_server": (2, 3, 4), "ring_all_reduce": (2, 4), "ring_all_reduce_builtin": (2, 4),
    "none": (2, 4),
}  # fmt: skip

FIRST_TRY = [Setup(name, 8, "mlp", train_size=_SHORT) for name in ("param_server", "ring_all_reduce")]
SERVER = {model: [Setup("param_server", 3, model), Setup("param_server_builtin", 2, model)] for model in MODELS}
SERVERS = [Setup("param_server", n) for n in (2, 3, 4)]
_RINGS = ("ring_all_reduce", "ring_all_reduce_builtin")
RING = {
    "cnn": [Setup(strategy, n) for n in (2, 4) for strategy in _RINGS],
    "mlp": [Setup(strategy, 2, "mlp") for strategy in _RINGS],
}
TRAFFIC = [Setup(strategy, 4) for strategy in ("ring_all_reduce", "naive_all_reduce", "param_server")]
STRONG = [Setup(strategy, n) for strategy, ranks in LINES.items() for n in ranks]
WEAK = [
    replace(setup, global_batch_size=setup.workers * BATCH // 2) for setup in STRONG if setup.strategy != "param_server"
]
STRONG_2 = [Setup(strategy, 3 if strategy == "param_server" else ranks[0]) for strategy, ranks in LINES.items()]
TABLE = [
    *SERVER["cnn"], *RING["cnn"], Setup("naive_all_reduce", 4), Setup("none", 2), Setup("none", 4), Setup("single", 1),
    *SERVER["mlp"], *RING["mlp"],
]  # fmt: skip
TELLING = [Setup("single", 1), *SERVER["cnn"], *RING["cnn"][:2]]  # the README's rows
COMPARED = {
    "param_server": [*SERVER["cnn"], *SERVER["mlp"], SERVERS[0], SERVERS[2], *FIRST_TRY],
    "ring_all_reduce": [*RING["cnn"][:2], *RING["mlp"], *RING["cnn"][2:], TRAFFIC[1]],
    "scaling": [*STRONG, *WEAK, *(replace(setup, train_size=size) for size in SIZES for setup in STRONG_2)],
}


class Comparison(Measured):
    """Some setups, each with every seed; strategies take turns, seed by seed."""

    seeds = SEEDS[:1]

    def __init__(self, name: str, quick: bool = False) -> None:
        super().__init__(name, quick)
        self.files = {RING_TRACE: draw_ring.record} if name == "ring_all_reduce" else {}
        self.shown = [_options(setup, seed) for seed in SEEDS for setup in dict.fromkeys(COMPARED[name])]
        if name in TIMELINES:
            run = _options(Setup(name, TIMELINES[name], "mlp"), SEEDS[0])
            self.shown.append(replace(run, train_size=_SHORT, epochs=1, run_name=f"{TIMELINE}-{name}-{run.n_gpus}"))

    def about(self, run: Options) -> dict[str, Any]:
        """Return what a run is called in tables: the columns of its Setup, and its seed."""
        options = {name: getattr(run, name) for name in ("n_gpus", "global_batch_size", "train_size", "seed")}
        return options | {"strategy": run.strategy.name, "model": LABELS[str(run.model)]}


def _options(setup: Setup, seed: int) -> Options:
    size = setup.train_size or "all"
    return Options(
        strategy=strategy_class(setup.strategy)(), n_gpus=setup.n_gpus, model=MODELS[setup.model],
        dataset="fashion_mnist", train_size=setup.train_size, global_batch_size=setup.global_batch_size,
        lr=0.02, momentum=0.9, seed=seed,
        epochs=_EPOCHS_OF_SIZE.get(setup.train_size, EPOCHS[setup.model]),
        run_name=f"{setup.model}-{setup.strategy}-{setup.n_gpus}-b{setup.global_batch_size}-{size}-s{seed}",
    )  # fmt: skip


# Servers that wait less

FAMILY = "server_family"
LOST_UPDATES = "lost_updates.csv"
FAMILY_SERVERS: dict[str, Strategy] = {
    "sync": make("param_server"), "backup": make("backup_workers", n_backup=1),
    "bounded": make("async_param_server", max_staleness=2),
    "async": make("async_param_server"), "downpour": make("downpour", n_push=4, n_fetch=4),
}  # fmt: skip
SYNCHRONOUS = ("sync", "backup")
GRID, TUNING_SEED = (0.05, 0.1, 0.2, 0.4), 100  # not one of those that are compared
GUESSING = 0.15  # accuracy below which a run of the grid has diverged, whatever its loss: one answer for all has 0.1
LEARNED = 0.5  # accuracy that a run must have for the next smaller rate to be safe
FAMILY_EPOCHS = {TUNING: 3, "final": 4, "slow": 2, "apart": 2, "apartslow": 2}
SLOW = {
    "final": (),
    "slow": ("3:5",),
    # All sleep for most of the time, and so need no core of their own: as if each had a device.
    "apart": ("1:3", "2:3", "3:3"),
    "apartslow": ("1:3", "2:3", "3:15"),
}
OF_ALL, OF_SYNCHRONOUS = ("final", "slow"), ("apart", "apartslow")  # which parts are run with which servers


def family_run(part: str, server: str, seed: int, lr: float = GRID[0]) -> Options:
    """Return a run of a part of SLOW, or of TUNING."""
    return Options(
        strategy=replace(FAMILY_SERVERS[server]),  # a new one for each run
        n_gpus=4, model="lenet", dataset="fashion_mnist", train_size=6_000 if part in OF_SYNCHRONOUS else 20_000,
        epochs=FAMILY_EPOCHS[part], lr=lr, momentum=0.0, slow=SLOW.get(part, ()), seed=seed, events=part != TUNING,
        run_name=f"{part}-{server}{f'-lr{lr:g}' if part == TUNING else ''}-s{seed}",
    )  # fmt: skip


class Family(Measured):
    """Five servers; the runs that are compared take turns, seed by seed."""

    files = {LOST_UPDATES: lost_updates.record}
    seeds = SEEDS[0], TUNING_SEED
    tuning = [
        *(family_run(TUNING, name, TUNING_SEED, lr) for lr in GRID for name in FAMILY_SERVERS),
        replace(  # a short one that is drawn
            family_run("slow", "async", SEEDS[0]), train_size=1_280, epochs=1, slow=("3:3",),
            run_name=f"{TIMELINE}-async_param_server-4",
        ),
    ]  # fmt: skip
    shown = [
        family_run(part, server, seed) for seed in SEEDS
        for part in SLOW for server in (FAMILY_SERVERS if part in OF_ALL else SYNCHRONOUS)
    ]  # fmt: skip

    def like(self, options: Options) -> str:
        """Return which of FAMILY_SERVERS a run has."""
        return str(options.run_name).split("-")[1]

    def about(self, options: Options) -> dict[str, Any]:
        """Return what a run is called in tables: its part, server, learning rate and seed."""
        part, server, *_ = str(options.run_name).split("-")
        return {"part": part, "server": server, "lr": options.lr, "seed": options.seed}

    def tuned(self, kept: Runs) -> dict[str, float]:
        """Return each server's learning rate."""
        return tuned(self.accuracies(kept))

    def accuracies(self, kept: Runs) -> pd.DataFrame:
        """Return the grid as measured: server, lr, seed, and accuracy, which is NaN where the run diverged."""
        reached = kept.table.dropna(subset="test_accuracy").groupby("run")["test_accuracy"].last()
        runs = self.grid()[:-1]
        rows = [(self.like(run), run.lr, run.seed, reached.get(str(run.run_name), 0.0)) for run in runs]
        table = pd.DataFrame(rows, columns=["server", "lr", "seed", "accuracy"])
        return table.assign(accuracy=table["accuracy"].where(table["accuracy"] > GUESSING))


def tuned(accuracies: pd.DataFrame) -> dict[str, float]:
    """Return each server's learning rate: that of the best accuracy with a margin below where it diverges.

    With the next larger rate of the grid, too, it must have learned: the compared runs are longer, and others, than
    those of the grid, and at the edge one in a few diverges.
    """
    reached = accuracies.pivot(index="lr", columns="server", values="accuracy").fillna(0.0)
    safe = (reached > LEARNED).shift(-1, fill_value=False)
    safe.iloc[0] = True
    return {str(server): float(lr) for server, lr in reached.where(safe).idxmax().items()}
