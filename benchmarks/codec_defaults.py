"""What a first run with a codec learns: the grid by which the codecs' defaults are chosen, and the result of all pairs.

python -m benchmarks codec_defaults    # the table goes to results/; all runs: five minutes on one core

Each run is 20 epochs on the digits in virtual time, with nothing given but the two names and what the table shows.
"""

import tempfile
from contextlib import suppress
from itertools import product
from typing import Any

import pandas as pd

from experiments.grid import KEPT, Grid
from gradwire import Options, run
from gradwire.compression import CODECS
from gradwire.core.records.errors import RunFailed
from gradwire.names import make_strategy
from gradwire.virtual_time.cluster import Compute
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import STRATEGIES

OUT = KEPT / "codec_defaults.csv"
EPOCHS, EARLY = 20, 5
SEEDS = (0, 1, 2)
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
    return [(strategy, codec) for strategy, codec in product(MEASURED, CODECS)
            if codec == "none" or CODECS[codec].kind in STRATEGIES[strategy].traits.carries]  # fmt: skip


def case(question: str, strategy: str, codec: str, n_gpus: int, seed: int, **changes: float) -> dict[str, Any]:
    """Return a run, with the values that it has by default where there are no `changes`."""
    usual = Options(strategy=make_strategy(strategy), codec=CODECS[codec](), n_gpus=n_gpus)
    chosen = {"density": getattr(usual.codec, "density", 1.0), "momentum": usual.momentum, "lr": usual.lr} | changes
    return {"question": question, "strategy": strategy, "codec": codec, "n_gpus": n_gpus, "seed": seed} | chosen


def compare(**case: Any) -> dict[str, Any]:
    """Make a run; return its row, with the held-out accuracy after 5 and 20 epochs; nan: the loss became infinite."""
    kind = CODECS[case["codec"]]
    codec = kind(**{"density": case["density"]} if "density" in kind.__dataclass_fields__ else {})
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            strategy=make_strategy(case["strategy"]), codec=codec, epochs=EPOCHS, device="cpu", results_dir=folder,
            run_name="run", events=False, **{name: case[name] for name in ("n_gpus", "seed", "momentum", "lr")},
        )  # fmt: skip
        time = VirtualTime(OneSwitch(case["n_gpus"], 1.25e9, 5e-5), Compute(options, _PHASES))
        found = pd.Series(float("nan"), index=[EARLY, EPOCHS])
        with suppress(RunFailed):
            found = run(options, quiet=True, launcher=time.launcher()).groupby("epoch")["test_accuracy"].max()
    return case | {f"accuracy_{epoch}": float(found[epoch]) for epoch in (EARLY, EPOCHS)}


CASES = [
    *(case("grid", strategy, codec, n, 0, **choice) for codec, choices in GRID.items()
      for choice, (strategy, n) in product(choices, ON)),
    *(case("defaults", *pair, 4, seed) for pair, seed in product(pairs(), SEEDS)),
]  # fmt: skip


def show(table: pd.DataFrame) -> None:
    """Print the accuracy at the end."""
    made, on = ["question", "codec", "density", "momentum", "lr"], ["strategy", "n_gpus"]
    print(table.pivot_table(index=made, columns=on, values="accuracy_20", sort=False).round(3).to_string())


RUNS = Grid(OUT, CASES, compare, show, {"epochs": EPOCHS})
