"""The runs behind the notebook on the server family: five servers, each with its best learning rate of one grid.

First every server is run with every learning rate of the grid; then each with the rate that was best for it, with equal
workers and with a slow one. All have three workers, 64 samples a worker and step, and no momentum.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from experiments.recorded import is_there, measured, same_run
from experiments.runs import SEEDS
from records.errors import RunFailed
from records.files import load_events, load_table, write_atomically
from records.staleness import histogram
from strategies import Strategy
from strategies.async_param_server import AsyncParamServer
from strategies.backup_workers import BackupWorkers
from strategies.downpour import Downpour
from strategies.param_server import ParamServer
from training import Options, run

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
GRID = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
LEARNED = 0.5  # accuracy below which a run of the grid counts as diverged
TUNING_SEEDS = (100, 101)  # not those that are compared
EPOCHS = {"tuning": 2, "final": 4, "slow": 2, "apart": 2, "apartslow": 2}
SLOW = {
    "final": (),
    "slow": ("3:5",),
    # All sleep for most of the time, and so need no core of their own: as if each had a device.
    "apart": ("1:3", "2:3", "3:3"),
    "apartslow": ("1:3", "2:3", "3:15"),
}
OF_ALL, OF_SYNCHRONOUS = ("final", "slow"), ("apart", "apartslow")  # which parts are run with which servers
_APART_SIZE = 12_000
STALENESS_SUFFIX = ".staleness.csv"
DIVERGED_SUFFIX = ".diverged"
LOST_UPDATES = "lost_updates.csv"
_QUICK_GRID = (0.05, 0.1)


def tuning(quick: bool = False) -> list[Options]:
    """Return the runs of the grid. `quick`: two rates and one seed, on scikit-learn's digits."""
    rates, seeds = (_QUICK_GRID, TUNING_SEEDS[:1]) if quick else (GRID, TUNING_SEEDS)
    return [_options("tuning", server, seed, lr, quick) for seed in seeds for lr in rates for server in SERVERS]


def finals(rates: Mapping[str, float], quick: bool = False) -> list[Options]:
    """Return the runs that are compared, each server with its learning rate; the servers take turns, seed by seed.

    `quick`: one seed, on scikit-learn's digits.
    """
    seeds = SEEDS[:1] if quick else SEEDS
    cases = [(part, server) for part in OF_ALL for server in SERVERS]
    cases += [(part, server) for part in OF_SYNCHRONOUS for server in SYNCHRONOUS]
    return [_options(part, server, seed, rates[server], quick) for seed in seeds for part, server in cases]


def _options(part: str, server: str, seed: int, lr: float, quick: bool) -> Options:
    tuned = f"-lr{lr:g}" if part == "tuning" else ""
    return Options(
        strategy=replace(SERVERS[server]),  # a new one for each run
        n_gpus=N_GPUS,
        model="lenet",
        dataset="digits" if quick else "fashion_mnist",
        train_size=_APART_SIZE if part in OF_SYNCHRONOUS and not quick else 0,
        epochs=EPOCHS[part],
        lr=lr,
        momentum=0.0,
        slow=SLOW.get(part, ()),
        seed=seed,
        events=part != "tuning",
        run_name=f"{part}-{server}{tuned}-s{seed}" + ("-quick" if quick else ""),
    )


def make(options: Options) -> None:
    """Make one run, and count how stale its gradients were. A learning rate that diverges is a result of the grid.

    Raises RunFailed, UsageError, OSError.
    """
    path = Path(options.results_dir) / str(options.run_name)
    try:
        run(options, quiet=True)
    except RunFailed as error:
        if not _is_of_grid(options) or "take a smaller --lr" not in str(error):
            raise
        record = {"options": measured(options.recorded()), "error": str(error)}
        with write_atomically(Path(f"{path}{DIVERGED_SUFFIX}")) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return
    if not _is_of_grid(options):
        with write_atomically(Path(f"{path}{STALENESS_SUFFIX}")) as temporary:
            histogram(load_events(path)).to_csv(temporary, index=False)


def is_made(options: Options) -> bool:
    """Return whether `make` has made this very run."""
    path = Path(options.results_dir) / str(options.run_name)
    if _is_of_grid(options):
        return is_there(options) or _has_diverged(path, options)
    return is_there(options) and Path(f"{path}{STALENESS_SUFFIX}").exists()


def _is_of_grid(options: Options) -> bool:
    return options.seed in TUNING_SEEDS


def _has_diverged(path: Path, options: Options) -> bool:
    try:
        record = json.loads(Path(f"{path}{DIVERGED_SUFFIX}").read_text(encoding="utf-8"))
        return same_run(options, record["options"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def grid(folder: Path, quick: bool = False) -> pd.DataFrame:
    """Return the grid as measured in `folder`: server, lr, seed, and accuracy, which is NaN where the run diverged.

    Raises OSError, ValueError if a run is neither there nor known to have diverged.
    """
    rows = []
    for one in tuning(quick):
        path = f"{folder / str(one.run_name)}"
        diverged = Path(path + DIVERGED_SUFFIX).exists()
        accuracy = float("nan") if diverged else load_table(f"{path}.csv")["test_accuracy"].dropna().iloc[-1]
        rows.append(
            {"server": str(one.run_name).split("-")[1], "lr": one.lr, "seed": one.seed, "accuracy": float(accuracy)}
        )
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
