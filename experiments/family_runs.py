"""The runs behind the notebook on the server family: five servers, each with its best learning rate of one grid.

First every server is run with every learning rate of the grid; then each with the rate that was best for it, with equal
workers and with a slow one. All have three workers, 64 samples a worker and step, and no momentum.
"""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from experiments.runs import SEEDS, TIMELINE
from experiments.store import DIVERGED, Store
from strategies import Strategy
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.asynchronous_server.downpour import Downpour
from strategies.synchronous_server.backup_workers import BackupWorkers
from strategies.synchronous_server.param_server import ParamServer
from training import Options

FAMILY = "server_family"  # the experiment, and the folder of its results in that of the others
SERVERS: dict[str, Strategy] = {
    "sync": ParamServer(),
    "backup": BackupWorkers(n_backup=1),
    "bounded": AsyncParamServer(max_staleness=2),
    "async": AsyncParamServer(),
    "downpour": Downpour(n_push=4, n_fetch=4),
}
SYNCHRONOUS = ("sync", "backup")
N_GPUS = 4
GRID = (0.05, 0.1, 0.2, 0.4)
GUESSING = 0.15  # accuracy below which a run of the grid has diverged, whatever its loss: one answer for all has 0.1
LEARNED = 0.5  # accuracy that a run must have for the next smaller rate to be safe
TUNING_SEEDS = (100,)  # not those that are compared
TRAIN_SIZE = 20_000  # a third of the pictures
EPOCHS = {"tuning": 3, "final": 4, "slow": 2, "apart": 2, "apartslow": 2}
SLOW = {
    "final": (),
    "slow": ("3:5",),
    # All sleep for most of the time, and so need no core of their own: as if each had a device.
    "apart": ("1:3", "2:3", "3:3"),
    "apartslow": ("1:3", "2:3", "3:15"),
}
OF_ALL, OF_SYNCHRONOUS = ("final", "slow"), ("apart", "apartslow")  # which parts are run with which servers
_APART_SIZE = 6_000
LOST_UPDATES = "lost_updates.csv"
_QUICK_GRID = (0.05, 0.1, 0.2)
_QUICK_EPOCHS = {"tuning": 6, "final": 12, "slow": 4, "apart": 2, "apartslow": 2}
_QUICK_SIZES = {"apart": 384, "apartslow": 384}


def tuning(quick: bool = False) -> list[Options]:
    """Return the runs of the grid. `quick`: three rates, on digits."""
    rates = _QUICK_GRID if quick else GRID
    return [_options("tuning", server, seed, lr, quick) for seed in TUNING_SEEDS for lr in rates for server in SERVERS]


def finals(rates: Mapping[str, float], quick: bool = False) -> list[Options]:
    """Return the runs that are compared, each server with its learning rate; the servers take turns, seed by seed.

    `quick`: one seed, on digits.
    """
    seeds = SEEDS[:1] if quick else SEEDS
    cases = [(part, server) for part in OF_ALL for server in SERVERS]
    cases += [(part, server) for part in OF_SYNCHRONOUS for server in SYNCHRONOUS]
    return [_options(part, server, seed, rates[server], quick) for seed in seeds for part, server in cases]


def timeline(quick: bool = False) -> Options:
    """Return a short run of the asynchronous server whose events are kept, to be drawn."""
    run = _options("slow", "async", SEEDS[0], GRID[0], quick)
    name = f"{TIMELINE}-async_param_server-{N_GPUS}" + ("-quick" if quick else "")
    return replace(run, train_size=1_280, epochs=1, slow=("3:3",), run_name=name)


def _options(part: str, server: str, seed: int, lr: float, quick: bool) -> Options:
    size = _APART_SIZE if part in OF_SYNCHRONOUS else TRAIN_SIZE
    if quick:
        size = _QUICK_SIZES.get(part, 0)
    tuned = f"-lr{lr:g}" if part == "tuning" else ""
    return Options(
        strategy=replace(SERVERS[server]),  # a new one for each run
        n_gpus=N_GPUS,
        model="benchmarks.networks:cnn" if quick else "lenet",
        dataset="digits" if quick else "fashion_mnist",
        train_size=size,
        epochs=(_QUICK_EPOCHS if quick else EPOCHS)[part],
        lr=lr,
        momentum=0.0,
        slow=SLOW.get(part, ()),
        seed=seed,
        events=part != "tuning",
        run_name=f"{part}-{server}{tuned}-s{seed}" + ("-quick" if quick else ""),
    )


def is_of_grid(options: Options) -> bool:
    """Return whether a run is one of those that find a learning rate."""
    return str(options.run_name).startswith("tuning")


def grid(store: Store, quick: bool = False) -> pd.DataFrame:
    """Return the grid as measured: server, lr, seed, and accuracy, which is NaN where the run diverged.

    Raises KeyError if a run is not there.
    """
    rows = []
    for one in tuning(quick):
        name = str(one.run_name)
        accuracy = 0.0 if DIVERGED in store.metadata[name] else float(store.metadata[name]["test_accuracy"])
        accuracy = accuracy if accuracy > GUESSING else float("nan")
        rows.append({"server": name.split("-")[1], "lr": one.lr, "seed": one.seed, "accuracy": accuracy})
    return pd.DataFrame(rows)


def tuned(measured_grid: pd.DataFrame) -> dict[str, float]:
    """Return each server's learning rate: that of the best mean accuracy with a margin below where it diverges.

    With the next larger rate of the grid, too, every seed must have learned: the compared runs are longer, and others,
    than those of the grid, and at the edge one in a few diverges.
    """
    rates: dict[str, float] = {}
    for server in SERVERS:
        runs = measured_grid[measured_grid["server"] == server].fillna({"accuracy": 0.0}).groupby("lr")["accuracy"]
        means, learns = runs.mean(), runs.min() > LEARNED
        safe = learns.shift(-1, fill_value=False)
        safe.iloc[0] = True
        rates[server] = float(means[safe].idxmax())
    return rates
