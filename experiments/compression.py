"""Compression: every codec on a ring, and the five methods of the paper on dual-way sparsification, in virtual time.

Yan, Xiao, Chen, Zhou, Wu, 2020, ICPP 2020: momentum SGD in one process, and on an asynchronous server ASGD, Gradient
Dropping, Deep Gradient Compression and DGS. Two files, one row a run and epoch: METHODS and CODED. What the phases of a
step take, coding among them, is timed on this machine once, before the runs.
"""

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from compression import CODECS, Codec
from experiments.cluster import cores
from experiments.collect import folder
from records.errors import RunFailed, UsageError
from records.files import AnyPath, git_commit, machine, write_together
from simulate import check
from strategies import Strategy
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.asynchronous_server.dgs import DGS
from strategies.single import Single
from strategies.synchronous_server.param_server import ParamServer
from training import Options, run
from virtual_time.cluster import ClusterOptions, Compute, time_phases
from virtual_time.launcher import VirtualTime

METHODS, CODED = "dgs.csv", "compression.csv"
ON_A_SERVER = {"ASGD": "none", "GD": "topk", "DGC": "dgc", "DGS": "dgs"}  # each with its codec
ONE_PROCESS, ONE_WORKER = "one process", "one worker"  # on the batches of all workers together, and of one
NAMES = {METHODS: (*ON_A_SERVER, ONE_PROCESS, ONE_WORKER), CODED: tuple(CODECS)}
WORKERS, TUNED_AT = (2, 4, 8), 4
MBIT, USUAL = (10_000, 1_000, 100), 1_000
DENSITY, DENSITIES = 0.01, (0.1, 0.01, 0.001)
BY_DENSITY = ("GD", "DGS")
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
SEEDS, TUNING_SEED = (1, 2, 3), 0
MOMENTUM = 0.7
BATCH, LATENCY, JITTER = 16, "50us", 0.2
PAPER = {  # its test accuracy in % with 4, 8, 16 and 32 workers: ResNet-18, CIFAR-10, 50 epochs, m = 0.7
    "ASGD": (90.70, 90.46, 90.53, 88.36),
    "GD": (92.01, 91.81, 91.43, 91.00),
    "DGC": (92.64, 92.37, 92.28, 91.86),
    "DGS": (92.91, 93.32, 92.98, 92.69),
}
PAPER_ONE_PROCESS = 93.08
_STEPS, _TIMINGS = 10, 10  # of a run that is only timed; of each phase


@dataclass(frozen=True)
class Case:
    """A run. `question`: grid, final, bandwidth or density of training; time or server of some steps only.

    `name`: a method, or a codec on a ring (server: on a synchronous server).
    """

    question: str
    name: str
    workers: int
    lr: float
    mbit: int = USUAL
    seed: int = SEEDS[0]
    density: float = DENSITY

    @property
    def strategy(self) -> Strategy:
        """Return the strategy."""
        if self.name in (ONE_PROCESS, ONE_WORKER):
            return Single(workers_like=self.workers)
        if self.name in ON_A_SERVER:
            return DGS(density=self.density) if self.name == "DGS" else AsyncParamServer()
        return ParamServer() if self.question == "server" else RingAllReduce()

    @property
    def codec(self) -> Codec:
        """Return what gradients are sent as; of DGS its own codec, which is no option."""
        name = ON_A_SERVER.get(self.name, self.name)
        if name == "dgs" and (own := DGS(density=self.density).cost().code):
            return own
        if name not in CODECS:
            return CODECS["none"]()
        known = {field.name for field in dataclasses.fields(CODECS[name])}
        wanted = {"density": self.density, "warmup_epochs": 0}
        return CODECS[name](**{option: value for option, value in wanted.items() if option in known})

    @property
    def only_timed(self) -> bool:
        """Return whether it is of some steps only."""
        return self.question in ("time", "server")

    def options(self, common: dict[str, Any]) -> Options:
        """Return the run's options."""
        strategy, codec = self.strategy, self.codec
        if self.only_timed:
            common = common | {"train_size": common["steps"] * BATCH * self.workers, "epochs": 1}
        n_gpus = 1 if isinstance(strategy, Single) else self.workers + strategy.roles(8).count("server")
        return Options(
            strategy=strategy, codec=CODECS["none"]() if isinstance(strategy, DGS) else codec, n_gpus=n_gpus,
            batch_size=BATCH, lr=self.lr, momentum=0.0 if self.name in ("ASGD", "GD") else MOMENTUM, seed=self.seed,
            jitter=JITTER, bandwidth=f"{self.mbit}mbit", latency=LATENCY,
            **{name: value for name, value in common.items() if name not in ("steps", "timings")},
        )  # fmt: skip


def common(quick: bool, data_dir: str) -> dict[str, Any]:
    """Return the options that all runs share, how many `steps` are only timed, and how often phases are."""
    shared: dict[str, Any] = {"data_dir": data_dir, "model": "mlp"}
    if quick:
        return {**shared, "dataset": "digits", "train_size": 320, "epochs": 1, "steps": 2, "timings": 1}
    return {
        **shared,
        "dataset": "fashion_mnist",
        "train_size": 5_120,
        "epochs": 4,
        "steps": _STEPS,
        "timings": _TIMINGS,
    }


def grid(file: str, quick: bool) -> list[Case]:
    """Return the runs that tell each one's learning rate."""
    rates = RATES[1:3] if quick else RATES
    return [Case("grid", name, _workers(name, TUNED_AT), lr, seed=TUNING_SEED) for name in NAMES[file] for lr in rates]


def finals(file: str, rates: dict[str, float], quick: bool) -> list[Case]:
    """Return the runs that are shown, with these learning rates."""
    seeds, many = (SEEDS[:1], WORKERS[:2]) if quick else (SEEDS, WORKERS)
    names = NAMES[file]
    cases = [Case("final", name, _workers(name, n), rates[name], seed=seed)
             for name in names for n in many for seed in seeds]  # fmt: skip
    if file == METHODS:
        cases += [Case("bandwidth", name, n, rates[name], mbit)
                  for name in ON_A_SERVER for n in many for mbit in MBIT if mbit != USUAL]  # fmt: skip
        cases += [Case("density", name, TUNED_AT, rates[name], seed=seed, density=density)
                  for name in BY_DENSITY for density in DENSITIES if density != DENSITY for seed in seeds]  # fmt: skip
    else:  # the bits are the same at every bandwidth
        cases += [Case("time", name, n, rates[name], mbit) for name in names for n in many for mbit in MBIT]
        cases += [Case("server", name, TUNED_AT, rates[name], mbit) for name in names for mbit in MBIT]
    return list(dict.fromkeys(cases))


def _workers(name: str, workers: int) -> int:
    return 1 if name == ONE_WORKER else workers


def tuned(rows: pd.DataFrame) -> dict[str, float]:
    """Return for each name the rate of the grid with the best accuracy at the end, of equal ones the smaller."""
    last = last_epochs(rows[rows["question"] == "grid"])
    return last.sort_values(["accuracy", "lr"], ascending=[False, True]).groupby("name")["lr"].first().to_dict()


def last_epochs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of every run."""
    return rows[rows["epoch"] == rows.groupby(_CASE, sort=False)["epoch"].transform("max")]


_CASE = [field.name for field in dataclasses.fields(Case)]


# What a step takes


def phases_of(file: str, shared: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the seconds of the phases of a step as timed here: of a "step" without coding, and of each one's coding.

    Of one process on the batches of n workers ("n workers") all of them: its batch is n times as large.
    """
    first, *others = NAMES[file]
    found = {"step": _timed(Case("time", first, TUNED_AT, RATES[0]), shared)}
    for name in others:
        if name == ONE_PROCESS:
            found |= {f"{n} workers": _timed(Case("time", name, n, RATES[0]), shared) for n in WORKERS}
        elif name != ONE_WORKER:
            phases = _timed(Case("time", name, TUNED_AT, RATES[0]), shared)
            found[name] = {phase: phases[phase] for phase in ("encode", "decode")}
    return found


def _timed(case: Case, shared: dict[str, Any]) -> dict[str, float]:
    """Return the shortest of some medians: whatever else the machine does makes it only longer."""
    options, _, _, data = check(case.options(shared), ClusterOptions(compute="1ms"))
    if isinstance(options.strategy, DGS):
        options = dataclasses.replace(options, strategy=AsyncParamServer(), codec=case.codec)
    medians = pd.DataFrame([time_phases(options, data) for _ in range(shared["timings"])])
    return {str(phase): float(value) for phase, value in medians.min().items()}


def _phases(case: Case, timed: dict[str, dict[str, float]]) -> dict[str, float]:
    if case.name == ONE_PROCESS:
        return timed[f"{case.workers} workers"]
    return timed["step"] | timed.get(case.name, {})


# The runs


def _run(case: Case, shared: dict[str, Any], timed: dict[str, dict[str, float]]) -> pd.DataFrame:
    """Make one run; return a row for each epoch. That a loss becomes nan is a result: no accuracy."""
    with tempfile.TemporaryDirectory() as results_dir:
        options, network, deaths, _ = check(case.options(shared | {"results_dir": results_dir}), ClusterOptions())
        time = VirtualTime(network, Compute(options, _phases(case, timed)), deaths)
        try:
            table = run(options, True, time.launcher())
        except RunFailed as error:
            if "take a smaller --lr" not in str(error):
                raise
            table = None
    facts = dataclasses.asdict(case)
    if table is None:
        return pd.DataFrame([facts | {"epoch": options.epochs}])
    rows = so_far(table, case.workers)
    if case.name in CODECS and not case.only_timed:  # what is shown is the time of the runs that are only timed
        rows = rows.drop(columns=["seconds", "computed", "coded"])
    return rows.assign(**facts)


def so_far(table: pd.DataFrame, workers: int) -> pd.DataFrame:
    """Return of the table of a run what there was at the end of each epoch.

    steps: of all workers together. mb: what all ranks have sent, code_mb: of it codes. seconds: of virtual time, of
    which a worker has computed and coded. staleness: mean of the epoch.
    """
    table = table.astype(dict.fromkeys((*_BYTES, "bytes_sent", "samples"), "float64"))
    by_epoch, of_workers = table.groupby("epoch"), table[table["role"] == "worker"].groupby("epoch")
    sums = by_epoch[["bytes_sent", *_BYTES]].sum().cumsum() / 1e6
    computed = of_workers[["data_s", "forward_s", "backward_s", "update_s"]].mean().sum(axis=1)
    columns = {
        "steps": of_workers["samples"].sum().cumsum() / (BATCH * workers),
        "accuracy": by_epoch["test_accuracy"].max(),
        "seconds": by_epoch["epoch_s"].max().cumsum(),
        "computed": computed.cumsum(),
        "coded": of_workers["compress_s"].mean().fillna(0.0).cumsum(),
        "mb": sums["bytes_sent"],
        "code_mb": sums[_BYTES].sum(axis=1),
        "staleness": by_epoch["staleness_mean"].max(),
    }
    return pd.DataFrame(columns).reset_index()


_BYTES = ["value_bytes", "index_bytes", "header_bytes"]


def record(path: AnyPath, data_dir: str = "data", quick: bool = False) -> None:
    """Make all runs of METHODS or of CODED; write them, and beside them what they share. Raises RunFailed, OSError."""
    path = Path(path)
    shared = common(quick, data_dir)
    timed = phases_of(path.name, shared)
    with cores() as pool:

        def rows(cases: Sequence[Case], what: str) -> Iterator[pd.DataFrame]:
            jobs = pool.map(_run, cases, [shared] * len(cases), [timed] * len(cases))
            yield from tqdm(jobs, total=len(cases), desc=what, unit="run", leave=False)

        first = pd.concat(rows(grid(path.name, quick), "learning rates"))
        rest = pd.concat(rows(finals(path.name, tuned(first), quick), path.stem))
    about = {name: value for name, value in shared.items() if name != "data_dir"}
    about |= {"batch_size": BATCH, "latency": LATENCY, "jitter": JITTER, "momentum": MOMENTUM, "phase_seconds": timed,
              "machine": machine(), "git_commit": git_commit()}  # fmt: skip
    table = pd.concat([first, rest], ignore_index=True)
    with write_together([path, path.with_suffix(".json")]) as (csv, facts):
        table[[*_CASE, *(name for name in table if name not in _CASE)]].to_csv(csv, index=False, float_format="%.6g")
        facts.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Compression:
    """What is known: rows of runs and epochs (the fields of Case, and what `so_far` has), and what they share."""

    methods: pd.DataFrame
    codecs: pd.DataFrame
    facts: dict[str, dict[str, Any]]  # by file

    def of(self, file: str, question: str) -> pd.DataFrame:
        """Return the rows of one question."""
        rows = self.methods if file == METHODS else self.codecs
        return rows[rows["question"] == question]


def load(directory: str | Path | None = None) -> Compression:
    """Return the results in `directory`; by default those named by $EXPERIMENT_RESULTS, or those of the repository.

    Raises UsageError.
    """
    where, facts = folder(directory), {}
    for name in NAMES:
        facts[name] = json.loads(_there(where, name).with_suffix(".json").read_text(encoding="utf-8"))
    return Compression(load_rows(where / METHODS), load_rows(where / CODED), facts)


def load_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a file; "none" is a name there."""
    return pd.read_csv(_there(path.parent, path.name), keep_default_na=False, na_values=[""])


def _there(where: Path, name: str) -> Path:
    if not (where / name).exists():
        raise UsageError(f"no {name} in {where}: make it with python experiments/run.py compression")
    return where / name


def missing(directory: Path) -> list[str]:
    """Return the files that are not there, or are those of a quick trial."""

    def measured(facts: Path) -> bool:
        return facts.exists() and json.loads(facts.read_text(encoding="utf-8"))["dataset"] != "digits"

    return [name for name in NAMES if not measured((directory / name).with_suffix(".json"))]


def provenance(results: Compression) -> str:
    """Return in one line what the runs are of."""
    facts = results.facts[CODED]
    return (
        f"{facts['dataset']}, {facts['train_size']} training samples, {facts['model']}, {facts['batch_size']} samples "
        f"a worker and step, {facts['epochs']} epochs; latency {facts['latency']}, jitter {facts['jitter']}; "
        f"phases timed on {facts['machine']['cpu']}; torch {facts['machine']['torch']}, "
        f"commit {str(facts['git_commit'])[:10]}"
    )
