"""The runs in virtual time, declared: what a cluster would do, compression, and the whole family on one page.

Compression has two experiments: every codec on a ring, and the five methods of the paper on dual-way sparsification
(Yan, Xiao, Chen, Zhou, Wu, 2020, ICPP 2020): momentum SGD in one process, and on an asynchronous server ASGD, Gradient
Dropping, Deep Gradient Compression and DGS. The whole family has the same budget of samples for every strategy, in
virtual time with 16 or 64 workers, a server beside them, and in processes with 4 ranks, any server included.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pandas as pd

from experiments.simulated import GRID, REAL, VIRTUAL, Case, Simulated
from gradwire import Options
from gradwire.compression import CODECS, Codec
from gradwire.core.records.tables import SERVER
from gradwire.names import make_strategy as make
from gradwire.virtual_time import simulate
from gradwire.virtual_time.calibration import time_phases
from gradwire.virtual_time.cluster import ClusterOptions
from strategies import Strategy

SEEDS, TUNING_SEED = (1, 2, 3), 0
FEW, MANY = 16, 64  # workers
BATCH, COMPUTE, CODING, LATENCY, JITTER = 16, "10ms", "2ms", "50us", 0.2
GBIT = (1, 10)
_ALIKE = {"batch_size": BATCH, "latency": LATENCY, "jitter": JITTER}
_FULL = {"model": "mlp", "dataset": "fashion_mnist"}
_QUICK = {"model": "mlp", "dataset": "digits", "epochs": 1}


def network_options(case: Case, strategy: Strategy, slow: bool = False) -> dict[str, Any]:
    """Return the options of a run in virtual time that are alike in all experiments: ranks, samples and network."""
    n_gpus = 1 if strategy.name == "single" else case.workers + strategy.roles(64).count(SERVER)
    return {
        "strategy": strategy, "n_gpus": n_gpus, "batch_size": BATCH, "lr": case.lr, "seed": case.seed, "jitter": JITTER,
        "slow": (f"{n_gpus - 1}:5",) if slow else (), "bandwidth": f"{case.gbit * 1000:g}mbit", "latency": LATENCY,
    }  # fmt: skip


class Cluster(Simulated):
    """Questions: scaling; slow, whether the last worker is; racks."""

    strategies: Mapping[str, Strategy] = {
        "ring": make("ring_all_reduce"), "server": make("param_server"),
        "bound 1": make("async_param_server", max_staleness=1), "bound 8": make("async_param_server", max_staleness=8),
        "asynchronous": make("async_param_server"), "backup": make("backup_workers"),
    }  # fmt: skip
    scaled = ("ring", "server", "bound 1", "bound 8", "asynchronous")
    workers = (1, 4, FEW, MANY)
    rates = (0.003125, 0.0125, 0.05, 0.2)
    constants = _ALIKE | {"compute": COMPUTE}
    sizes = _FULL | {"train_size": 10_000, "epochs": 2}, _QUICK | {"train_size": 300}

    tuning = [Case(GRID, *run, TUNING_SEED, GBIT[-1]) for run in product(scaled, workers, rates)]
    racks = product(("ring", "server", "asynchronous"), ((1, 0), (4, 1.0), (4, 0.25)))
    shown = [
        *(Case("scaling", name, n, 0, seed, gbit) for name, n, gbit, seed in product(scaled, workers, GBIT, SEEDS)),
        *(Case("slow", name, FEW, 0, seed, GBIT[-1], slow=slow)
          for name, slow, seed in product(strategies, (False, True), SEEDS)),
        *(Case("racks", name, FEW, 0, SEEDS[0], GBIT[0], racks=n, uplink=uplink) for name, (n, uplink) in racks),
    ]  # fmt: skip

    def like(self, case: Case) -> tuple[str, str, int]:
        """Return the key of the runs whose rate it takes: with a backup worker the server's."""
        return VIRTUAL, "server" if case.name == "backup" else case.name, case.workers

    def options(self, case: Case, common: dict[str, Any]) -> Options:
        """Return the options of a run."""
        return Options(**network_options(case, self.strategies[case.name], case.slow), momentum=0.0, **common)

    def machines(self, case: Case) -> ClusterOptions:
        """Return the cluster of a run."""
        uplink = f"{case.uplink:g}gbit" if case.uplink else None
        return ClusterOptions(compute=COMPUTE, racks=case.racks, rack_bandwidth=uplink)


# Compression

METHODS, CODED = "dgs", "compression"
ON_A_SERVER = {"ASGD": "none", "GD": "topk", "DGC": "dgc", "DGS": "dgs"}  # each with its codec
ONE_PROCESS, ONE_WORKER = "one process", "one worker"  # on the batches of all workers together, and of one
NAMES = {METHODS: (*ON_A_SERVER, ONE_PROCESS, ONE_WORKER), CODED: tuple(CODECS)}
TUNED_AT, USUAL = 4, 1
BANDWIDTHS = (10, 1, 0.1)  # Gbit/s
BY_DENSITY = ("GD", "DGS")  # run with other densities than that of a Case
MOMENTUM = 0.7
_STEPS, _TIMINGS = 10, 10  # of a run that is only timed; of each phase


def _workers(name: str, workers: int = TUNED_AT) -> int:
    return 1 if name == ONE_WORKER else workers


class Compression(Simulated):
    """Questions: final, bandwidth or density of training; time or server (instead of a ring) of some steps only.

    What the phases of a step take, coding among them, is timed on this machine.
    """

    workers = (2, 4, 8)
    rates = (0.003, 0.01, 0.03, 0.1, 0.3)
    constants = _ALIKE | {"momentum": MOMENTUM, "steps": _STEPS, "timings": _TIMINGS}
    sizes = _FULL | {"train_size": 5_120, "epochs": 4}, _QUICK | {"train_size": 320}

    def __init__(self, name: str, quick: bool = False) -> None:
        super().__init__(name, quick)
        names, first = NAMES[name], SEEDS[0]
        self.tuning = [Case(GRID, name, _workers(name), lr, TUNING_SEED) for name, lr in product(names, self.rates)]
        runs = product(names, self.workers, SEEDS)
        cases = [Case("final", method, _workers(method, n), 0, seed) for method, n, seed in runs]
        if name == METHODS:
            cases += [Case("bandwidth", name, n, 0, first, gbit)
                      for name, n, gbit in product(ON_A_SERVER, self.workers, BANDWIDTHS) if gbit != USUAL]  # fmt: skip
            cases += [Case("density", method, TUNED_AT, 0, seed, density=density)
                      for method, density, seed in product(BY_DENSITY, (0.1, 0.001), SEEDS)]  # fmt: skip
        else:  # the bits are the same at every bandwidth
            timed = [*product(["time"], self.workers), ("server", TUNED_AT)]
            cases += [Case(question, method, n, 0, first, gbit)
                      for (question, n), method, gbit in product(timed, names, BANDWIDTHS)]  # fmt: skip
        self.shown = list(dict.fromkeys(cases))

    def like(self, case: Case) -> tuple[str, str, int]:
        """Return the key of the runs whose rate it takes."""
        return VIRTUAL, case.name, _workers(case.name)

    def _strategy(self, case: Case) -> Strategy:
        if case.name in (ONE_PROCESS, ONE_WORKER):
            return make("single", workers_like=case.workers)
        if case.name in ON_A_SERVER:
            return make("dgs", density=case.density) if case.name == "DGS" else make("async_param_server")
        return make("param_server") if case.question == "server" else make("ring_all_reduce")

    def _codec(self, case: Case) -> Codec:
        """Return what gradients are sent as; DGS has a codec of its own, which is no option."""
        kind = CODECS.get(ON_A_SERVER.get(case.name, case.name), CODECS["none"])
        wanted = {"density": case.density, "warmup_epochs": 0}
        return kind(**{option: value for option, value in wanted.items() if option in kind.__dataclass_fields__})

    def options(self, case: Case, common: dict[str, Any]) -> Options:
        """Return the options of a run."""
        strategy, momentum = self._strategy(case), 0.0 if case.name in ("ASGD", "GD") else MOMENTUM
        shared = network_options(case, strategy) | common | {"codec": self._codec(case), "momentum": momentum}
        if case.question in ("time", "server"):
            shared |= {"train_size": _STEPS * BATCH * case.workers, "epochs": 1}
        return Options(**shared)

    def timed(self, common: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds of the phases of a step without coding ("step"), and of each one's coding.

        Of one process on the batches of n workers ("n workers") all of them: its batch is n times as large.
        """
        first, *others = NAMES[self.name]
        found = {"step": self._timed(first, TUNED_AT, common)}
        for name in others:
            if name == ONE_PROCESS:
                found |= {f"{n} workers": self._timed(name, n, common) for n in self.workers}
            elif name != ONE_WORKER:
                phases = self._timed(name, TUNED_AT, common)
                found[name] = {phase: phases[phase] for phase in ("encode", "decode")}
        return found

    def _timed(self, name: str, workers: int, common: dict[str, Any]) -> dict[str, float]:
        """Return the shortest of some medians: whatever else the machine does makes it only longer."""
        options = self.options(Case("time", name, workers, self.rates[0], SEEDS[0]), common)
        options, _, _, data = simulate.check(options, ClusterOptions(compute="1ms"))
        timings = 1 if options.dataset == _QUICK["dataset"] else _TIMINGS
        medians = pd.DataFrame([time_phases(options, data) for _ in range(timings)]).min()
        return {str(phase): float(value) for phase, value in medians.items()}

    def phases(self, case: Case, timed: Mapping[str, Any]) -> dict[str, float]:
        """Return the seconds of the phases of a step."""
        if case.name == ONE_PROCESS:
            return dict(timed[f"{case.workers} workers"])
        return timed["step"] | timed.get(case.name, {})


# The whole family

EVERY: dict[str, dict[str, Strategy]] = {  # by group
    "a server, in step": {
        "server": make("param_server"), "4 servers": make("sharded_param_server", servers=4),
        "1 backup worker": make("backup_workers"),
    },
    "a server, nobody waits": {
        "asynchronous": make("async_param_server"), "inconsistent reads": make("inconsistent_reads"),
        "Downpour, every 4": make("downpour", n_push=4, n_fetch=4), "EASGD": make("easgd"), "DGS": make("dgs"),
    },
    "all-reduce": {
        "ring": make("ring_all_reduce"), "overlapped ring": make("overlapped_ring", bucket_mb=0.25),
        "sharded ring": make("sharded_ring"), "naive": make("naive_all_reduce"), "all-gather": make("all_gather"),
    },
    "models of their own": {
        "local SGD, every 5": make("local_sgd", local_steps=5),
        "DiLoCo, every 10": make("local_sgd", local_steps=10, outer_optimizer="nesterov"),
        "SPARTA": make("sparta"), "gossip, ring": make("gossip"),
        "gossip, exponential": make("gossip", topology="exponential"), "AD-PSGD": make("ad_psgd"), "none": make("none"),
    },
    "one x, no lock": {"Hogwild": make("hogwild"), "Hogwild++": make("hogwild_pp")},
}  # fmt: skip
_STRATEGIES: dict[str, Strategy] = {name: strategy for group in EVERY.values() for name, strategy in group.items()}
_ONLY = {REAL: ("inconsistent reads", "Hogwild", "Hogwild++"), VIRTUAL: ("4 servers",)}
ALIKE = ("4 servers", "1 backup worker", "ring", "overlapped ring", "sharded ring", "naive", "all-gather")
"""They take the steps of the synchronous server, or nearly, and so have its learning rate."""
LOCAL_STEPS, BOUNDS = "local steps H", "staleness bound s"
VALUES = {LOCAL_STEPS: (1, 2, 4, 8, 16, 32), BOUNDS: (0, 1, 2, 4, 8, 16)}
RANKS, GLOBAL_BATCH = 4, 48
PLACES = ((VIRTUAL, FEW, GBIT), (VIRTUAL, MANY, GBIT), (REAL, RANKS, (0,)))  # with how many workers, and the networks


def names_of(where: str) -> list[str]:
    """Return which strategies of the family run there."""
    return [name for name in _STRATEGIES if name not in _ONLY[VIRTUAL if where == REAL else REAL]]


class WholeFamily(Simulated):
    """Questions: final; slow, the last worker is; axis, one of VALUES; lost, Hogwild's updates."""

    cluster = ClusterOptions(compute=COMPUTE, coding=CODING)
    rates = (0.0002, 0.00078125, 0.003125, 0.0125, 0.05, 0.2, 0.8)
    constants = _ALIKE | {"global_batch_size": GLOBAL_BATCH, "compute": COMPUTE, "coding": CODING}
    sizes = _FULL | {"train_size": 12_288, "epochs": 3}, _QUICK | {"train_size": 1024}

    tuning = [Case(GRID, name, workers, lr, TUNING_SEED, networks[-1], where)
              for lr, (where, workers, networks) in product(rates, PLACES)
              for name in names_of(where) if name not in ALIKE]  # fmt: skip
    shown = [
        *(Case("final", name, workers, 0, seed, gbit, where) for where, workers, networks in PLACES
          for name, gbit, seed in product(names_of(where), networks, SEEDS)),
        *(Case("slow", name, FEW, 0, seed, GBIT[-1]) for name, seed in product(names_of(VIRTUAL), SEEDS)),
        *(Case("axis", axis, FEW, 0, seed, gbit, value=value)
          for axis, values in VALUES.items() for value, gbit, seed in product(values, GBIT, SEEDS)),
        *(Case("lost", "Hogwild", n, 0, seed, 0, REAL) for n, seed in product((1, 2, 4), SEEDS)),
    ]  # fmt: skip

    def like(self, case: Case) -> tuple[str, str, int]:
        """Return the key of the runs whose rate it takes: the server's if ALIKE, that of 4 ranks for Hogwild."""
        name = "server" if case.name in ALIKE else case.name
        if case.question == "axis":  # with the bound 0 a server is synchronous
            name = "local SGD, every 5" if case.name == LOCAL_STEPS else "asynchronous" if case.value else "server"
        return case.where, name, RANKS if case.where == REAL else case.workers

    def _strategy(self, case: Case) -> Strategy:
        if case.name == LOCAL_STEPS:
            return make("local_sgd", local_steps=case.value)
        if case.name == BOUNDS:
            return make("async_param_server", max_staleness=case.value, aggregate=1 if case.value else case.workers)
        return make("hogwild", count_lost=True) if case.question == "lost" else _STRATEGIES[case.name]

    def options(self, case: Case, common: dict[str, Any]) -> Options:
        """Return the options of a run."""
        strategy = self._strategy(case)
        common = common | {"momentum": 0.7 if strategy.name == "dgs" else 0.0}  # DGS is not without
        if case.where == VIRTUAL:
            return Options(**network_options(case, strategy, case.question == "slow"), **common)
        return Options(strategy=strategy, n_gpus=case.workers, global_batch_size=GLOBAL_BATCH, device="cpu", lr=case.lr,
                       seed=case.seed, **common)  # fmt: skip
