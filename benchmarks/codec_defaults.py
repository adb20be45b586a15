"""What a first run with a codec learns: the grid by which the codecs' defaults are chosen, and the result of all pairs.

python -m benchmarks.codec_defaults    # five minutes on one core; the table goes to results/

Each run is 20 epochs on the digits in virtual time, with nothing given but the two names and what the table shows.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from gradwire import Options, run
from gradwire.compression import CODECS
from gradwire.core.records.errors import RunFailed
from gradwire.names import make_strategy
from gradwire.virtual_time.cluster import Compute
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import STRATEGIES

EPOCHS, EARLY = 20, 5
SEEDS = (0, 1, 2)
KEYS = ["question", "strategy", "codec", "n_gpus", "seed"]
OUT = Path(__file__).parents[1] / "results" / "amd-epyc-2-cores" / "codec_defaults.csv"
GRID: dict[str, list[dict[str, Any]]] = {
    "random_k": [{"density": R, "momentum": m, "lr": lr} for R in (0.01, 0.03, 0.1, 0.5)
                 for m, lr in ((0.9, 0.1), (0.5, 0.1), (0.0, 0.1), (0.0, 0.2))],
    "sign": [{"momentum": m} for m in (0.9, 0.7, 0.5, 0.0)],
    "dgc": [{"momentum": m} for m in (0.9, 0.8, 0.7, 0.5)],
    "topk": [{"momentum": m} for m in (0.9, 0.7, 0.5, 0.0)],
}  # fmt: skip
MEASURED = ("param_server", "backup_workers", "async_param_server", "ring_all_reduce", "all_gather")
ON = (("param_server", 4), ("async_param_server", 4), ("ring_all_reduce", 3), ("ring_all_reduce", 4))
_PHASES = {"data": 1e-4, "forward": 1e-3, "backward": 2e-3, "update": 5e-4, "encode": 1e-3, "decode": 1e-3}


def pairs() -> list[tuple[str, str]]:
    """Return every strategy of MEASURED with each codec that it carries, none first."""
    return [(one, codec) for one, codec in product(MEASURED, CODECS)
            if codec == "none" or CODECS[codec].kind in STRATEGIES[one].traits.carries]  # fmt: skip


def accuracies(strategy: str, codec: str, n_gpus: int, seed: int, **changes: Any) -> dict[str, Any]:
    """Make a run; return its density, momentum and rate, and the held-out accuracy after 5 and after 20 epochs.

    Both are nan if the loss becomes infinite. `changes`: options of the codec and of the run.
    """
    own = {name: changes.pop(name) for name in list(changes) if name in CODECS[codec].__dataclass_fields__}
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            strategy=make_strategy(strategy), codec=CODECS[codec](**own), n_gpus=n_gpus, seed=seed, epochs=EPOCHS,
            device="cpu", results_dir=folder, run_name="run", events=False, **changes,
        )  # fmt: skip
        time = VirtualTime(OneSwitch(n_gpus, 1.25e9, 5e-5), Compute(options, _PHASES))
        found = pd.Series(float("nan"), index=[EARLY, EPOCHS])
        with suppress(RunFailed):
            found = run(options, quiet=True, launcher=time.launcher()).groupby("epoch")["test_accuracy"].max()
    made = {"density": getattr(options.codec, "density", 1.0), "momentum": options.momentum, "lr": options.lr}
    return made | {f"accuracy_{epoch}": float(found[epoch]) for epoch in (EARLY, EPOCHS)}


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each run: those of the grid, then every pair with its defaults."""
    grid = [("grid", strategy, codec, n, 0, choice)
            for codec, choices in GRID.items() for choice, (strategy, n) in product(choices, ON)]  # fmt: skip
    defaults = [("defaults", *pair, 4, seed, dict[str, Any]()) for pair, seed in product(pairs(), SEEDS)]
    for *of, choice in (*grid, *defaults):
        yield dict(zip(KEYS, of, strict=True)) | accuracies(*of[1:], **choice)


if __name__ == "__main__":
    table = pd.DataFrame(tqdm(rows(), unit="run"))
    table.round(4).to_csv(OUT, index=False)
    made, on = ["question", "codec", "density", "momentum", "lr"], ["strategy", "n_gpus"]
    print(table.pivot_table(index=made, columns=on, values="accuracy_20", sort=False).round(3).to_string())
