"""The whole family on text, declared: a small GPT, with 8 workers in virtual time, and beside DDP on this machine.

And those that talk seldom, DiLoCo and what came after it: in virtual time only.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from experiments import virtual_cases as family
from experiments.real import strategy_class
from experiments.simulated import GRID, REAL, VIRTUAL, Case, Rows, Simulated
from experiments.virtual_cases import ALIKE, BANDWIDTHS, ONE_PROCESS, SEEDS, names_of
from gradwire import Options
from gradwire.compression.topk import TopK
from gradwire.names import make_strategy as make
from gradwire.virtual_time.cluster import ClusterOptions
from strategies import Strategy

TEXT, SPEED, WORKERS, FULL_SPEED = "language_model", "speed", 8, BANDWIDTHS[0]
STEP_MS, SGD_RATE = 20, 10  # of a worker's step; DGS has no AdamW, and takes rates SGD_RATE times those of the grid
OF_TEXT: dict[str, Strategy] = {ONE_PROCESS: make("single", workers_like=WORKERS)}
OF_TEXT |= {
    name: strategy for group in family.EVERY.values() for name, strategy in group.items() if name in names_of(VIRTUAL)
}
OF_TEXT["overlapped ring"] = make("overlapped_ring", bucket_mb=0.05)  # the network has few megabytes

SELDOM, ROUND, NETWORKS = "low_communication", 8, BANDWIDTHS[1:]  # ROUND: steps between two averagings of all of x
_OUTER = {"outer_momentum": 0.5}  # of all that have one, as in NoLoCo: 0.9 remembers ten rounds, a third of these runs
_DILOCO = make("local_sgd", local_steps=ROUND, outer_optimizer="nesterov", **_OUTER)
OF_SELDOM: dict[str, Strategy] = {
    "ring": OF_TEXT["ring"], "DeMo": make("demo"), "local SGD": make("local_sgd", local_steps=ROUND), "DiLoCo": _DILOCO,
    "streaming DiLoCo": make("streaming_diloco", local_steps=ROUND, **_OUTER),
    "decoupled DiLoCo": make("decoupled_diloco", local_steps=ROUND // 2, fragments=2, **_OUTER),
    "DES-LOC": make("des_loc", local_steps=ROUND), "NoLoCo": make("noloco", local_steps=ROUND, **_OUTER),
    "SparseLoCo": make("local_sgd", local_steps=ROUND), "MuLoCo": _DILOCO,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {  # options that others have not
    "DeMo": {"optimizer": "sgd", "momentum": 0.0}, "MuLoCo": {"optimizer": "muon"},
    "SparseLoCo": {"codec": TopK(density=0.03, error_decay=0.95)},
}  # fmt: skip
_ALL = OF_TEXT | OF_SELDOM
WITH_TWO, BATCH_OF_TWO = {"ring": 2, "server": 3, "DDP": 2}, 8  # ranks of two workers, and samples of each


def depends_on_time(name: str) -> bool:
    """Return whether a strategy learns something else on another network, by the order in which workers come."""
    return _ALL[name].traits.asynchronous or _ALL[name].name == "backup_workers"


def networks_of(rows: Rows) -> list[float]:
    """Return the bandwidths in Gbit/s, the highest first: full speed."""
    return sorted(rows.of("final")["gbit"].unique(), reverse=True)


def at(rows: Rows, gbit: float, last: bool = True) -> pd.DataFrame:
    """Return the rows of `final` at a bandwidth, as `Rows.of` does.

    Of what learns the same at any they are those at full speed, with the seconds a step of the first seed here.
    """
    full_speed = networks_of(rows)[0]
    here, full = (rows.of("final", last=last, gbit=bandwidth) for bandwidth in (gbit, full_speed))
    timed = here[here["seed"] == SEEDS[0]].set_index(["name", "epoch"])
    step_s = (timed["seconds"] / timed["steps"]).rename("seconds")
    same = full[~full["name"].map(depends_on_time)].drop(columns="seconds").join(step_s, on=["name", "epoch"])
    same["seconds"] *= same["steps"]
    return full if gbit == full_speed else pd.concat([here[here["name"].map(depends_on_time)], same.assign(gbit=gbit)])


class LanguageModel(Simulated):
    """Questions: final; speed, of processes on this machine, with the default network.

    What learns the same at every bandwidth is trained once for each seed; elsewhere the first seed tells the seconds.
    """

    rates = (0.001, 0.003, 0.01)
    constants = {
        "batch_size": 4, "latency": family.LATENCY, "jitter": family.JITTER, "compute": f"{STEP_MS}ms",
        "optimizer": "adamw", "model_options": "layers=1,width=64",
    }  # fmt: skip
    _text = {"model": "gpt", "dataset": "text"}
    sizes = _text | {"train_size": 4096, "epochs": 3}, _text | {"train_size": 512, "epochs": 1}

    tuning = [Case(GRID, name, WORKERS, lr, family.TUNING_SEED, FULL_SPEED)
              for lr, name in product(rates, OF_TEXT) if name not in (*ALIKE, ONE_PROCESS)]  # fmt: skip
    shown = [
        *(Case("final", name, WORKERS, 0, seed, gbit) for seed, name, gbit in product(SEEDS, OF_TEXT, BANDWIDTHS)
          if gbit == FULL_SPEED or depends_on_time(name) or seed == SEEDS[0]),
        *(Case(SPEED, name, n, 0, seed, 0, REAL) for seed, (name, n) in product(range(1, 6), WITH_TWO.items())),
    ]  # fmt: skip

    def like(self, case: Case) -> tuple[str, str, int]:
        """Return the key of the runs whose rate it takes: the server's if it takes the same steps."""
        alike = case.where == REAL or case.name in (*ALIKE, ONE_PROCESS)
        return VIRTUAL, "server" if alike else case.name, WORKERS

    def machines(self, case: Case) -> ClusterOptions:
        """Return the cluster of a run; one process computes what all workers do."""
        times = WORKERS if case.name == ONE_PROCESS else 1
        return ClusterOptions(compute=f"{STEP_MS * times}ms", coding=family.CODING)

    def options(self, case: Case, common: dict[str, Any]) -> Options:
        """Return the options of a run."""
        strategy = _ALL.get(case.name) or strategy_class("ring_all_reduce_builtin")()
        sgd = {"optimizer": "sgd", "lr": SGD_RATE * case.lr, "momentum": family.MOMENTUM}
        how = {name: self.constants[name] for name in ("batch_size", "optimizer", "model_options")}
        how |= {"momentum": 0.9, "lr_schedule": "cosine", "warmup": 0.25} | (sgd if strategy.name == "dgs" else {})
        if case.where == VIRTUAL:
            return Options(**family.network_options(case, strategy) | common | how)
        small = {"train_size": min(2048, common["train_size"]), "epochs": 3, "batch_size": BATCH_OF_TWO}
        return Options(strategy=strategy, n_gpus=case.workers, device="cpu", lr=case.lr, seed=case.seed,
                       **common | how | small | {"model_options": ""})  # fmt: skip


class LowCommunication(LanguageModel):
    """Questions: final, of those that talk seldom, beside the ring. Of a run that only tells seconds, a quarter."""

    sizes = LanguageModel._text | {"train_size": 4096, "epochs": 2}, LanguageModel.sizes[1]
    tuning = [Case(GRID, name, WORKERS, lr, family.TUNING_SEED, NETWORKS[0])
              for lr, name in product(LanguageModel.rates, OF_SELDOM)]  # fmt: skip
    shown = [Case("final", name, WORKERS, 0, seed, gbit) for seed, name, gbit in product(SEEDS, OF_SELDOM, NETWORKS)
             if gbit == NETWORKS[0] or depends_on_time(name) or seed == SEEDS[0]]  # fmt: skip

    def like(self, case: Case) -> tuple[str, str, int]:
        """Return the key of the runs whose rate it takes: its own."""
        return Simulated.like(self, case)

    def options(self, case: Case, common: dict[str, Any]) -> Options:
        """Return the options of a run."""
        if case.gbit != NETWORKS[0] and not depends_on_time(case.name):
            common = common | {"train_size": common["train_size"] // 4}
        return replace(super().options(case, common), **_OWN.get(case.name, {}))
