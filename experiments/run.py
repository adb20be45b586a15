"""Make the data of the notebooks again: results/HARDWARE/EXPERIMENT.csv and .json.

python experiments/run.py param_server      # or ring_all_reduce, scaling, server_family, cluster, dgs, compression,
                                            # whole_family, language_model, low_communication, all

python experiments/run.py all --quick       # all of it small, in a few minutes: digits, one seed

How long each takes is in experiments/README.md. The data set is Fashion-MNIST, which `--download` fetches, or text.
Runs that are there already are skipped, so an interrupted command continues where it was. A run that fails is reported,
and the others are still made.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradwire.ending import end_while_loading

FINISHED = "finished runs are kept, and the same command continues from there"
if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    end_while_loading(FINISHED)

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from tqdm import tqdm
from tyro.conf import Positional

from experiments import tables
from experiments.cases import COMPARED
from experiments.experiment import Experiment, Store, attempt
from experiments.measured import hardware, of_size
from experiments.real import Runs
from experiments.text_cases import SELDOM, TEXT
from experiments.virtual_cases import CODED, METHODS
from gradwire import Options
from gradwire.command_line import guarded, parse
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.machine import machine
from gradwire.core.records.tables import aligned
from gradwire.core.training.checks import resolve
from gradwire.core.workloads import datasets
from gradwire.core.workloads.options import DataOptions

WORK = ".work"  # where runs write their own files, until they are collected


@dataclass(frozen=True)
class Settings:
    """Which runs, and where things are."""

    experiment: Positional[
        Literal[
            "param_server", "ring_all_reduce", "scaling", "server_family", "cluster", "dgs", "compression",
            "whole_family", "language_model", "low_communication", "all",
        ]
    ]  # fmt: skip
    """The experiment whose runs are made."""
    quick: bool = False
    """All of it small, in a few minutes: digits, one seed."""
    results_dir: str | None = None
    """Where the results are written. Default: results/HARDWARE (with --quick: results/quick)."""
    data_dir: str = "data"
    """Where the data set lies."""
    download: bool = False
    """Let torchvision download the data set if it is not there."""
    device: str = "auto"
    """auto (cuda if there is a GPU), cpu or cuda."""


@dataclass
class _Count:
    """What was done: runs made, there already, and failed."""

    made: int = 0
    there: int = 0
    failed: list[str] = field(default_factory=list)

    def collect(self, jobs: Iterable[tuple[str, Any, Any]], n: int) -> None:
        """Call each job's function with its result; report what failed, and continue."""
        bar = tqdm(jobs, total=n, unit="run", disable=not n)
        for name, keep, result in bar:
            bar.set_description(name)
            kept = result if isinstance(result, Exception) else attempt(partial(keep, result))
            if isinstance(kept, Exception):
                self.failed.append(name)
                bar.write(f"failed: {name}: {' '.join(str(kept).split())}", file=sys.stderr)
            else:
                self.made += 1


def main(settings: Settings) -> None:
    """Make the runs that are not there yet. Raises UsageError; RunFailed at the end if a run failed."""
    if settings.results_dir == "":
        raise UsageError("--results_dir: is empty; name a folder, or leave it out")
    experiments = of_size(settings.quick)
    chosen = list(experiments) if settings.experiment == "all" else [settings.experiment]
    chosen = [METHODS, CODED] if chosen == [CODED] else chosen
    device = resolve(Options(device=settings.device)).device
    directory = Path(settings.results_dir or Path("results") / ("quick" if settings.quick else hardware(device)))
    of = "text" if {TEXT, SELDOM}.issuperset(chosen) else "digits" if settings.quick else "fashion_mnist"
    datasets.load(DataOptions(dataset=of, data_dir=settings.data_dir, download=settings.download))
    check_writable_by("results_dir", directory)
    shutil.rmtree(directory / WORK, ignore_errors=True)  # of a command that was killed
    kept = {name: one.open(directory) for name, one in experiments.items() if name in (*COMPARED, *chosen)}
    measured = [one for one in kept.values() if isinstance(one, Runs)]  # which share runs
    for name in chosen:
        if experiments[name].missing(directory):
            _refuse_another_machine(measured if kept[name] in measured else [kept[name]])
    common, count = {"device": device, "data_dir": settings.data_dir, "results_dir": str(directory / WORK)}, _Count()

    def make(experiment: Experiment, store: Any, runs: list[Any]) -> bool:
        """Make the runs that are not there, nor in another store; return whether all are there."""
        for one in runs if isinstance(store, Runs) else ():
            having = next((other for other in measured if other.has(one)), None)
            if having is not None and not store.has(one):
                store.add(one, (having.rows(str(one.run_name)), having.runs[str(one.run_name)]))
        lacking = [one for one in runs if not store.has(one)]
        count.there += len(runs) - len(lacking)
        jobs = experiment.results(store, lacking, common)
        count.collect(((str(one.run_name), partial(store.add, one), result) for one, result in jobs), len(lacking))
        return all(map(store.has, runs))

    for name in chosen:
        one, store = experiments[name], kept[name]
        tuned = make(one, store, one.grid())
        absent = [file for file in one.files if not (directory / file).exists()]
        count.collect(((file, one.files[file], directory / file) for file in absent), len(absent))
        if tuned:
            make(one, store, one.finals(one.tuned(store)))
    if METHODS in chosen:
        print(aligned(tables.grouped(kept[METHODS].of("final"), *tables.METHODS), left=1))
    rows = {"runs made": count.made, "there already": count.there, "failed": len(count.failed)}
    print(aligned([(name, str(n)) for name, n in rows.items()], left=1))
    print(f"results in {directory}; what is there is not made again, unless its file is deleted")
    if count.failed:
        named = ", ".join(count.failed[:3]) + (", ..." if len(count.failed) > 3 else "")
        raise RunFailed(f"{len(count.failed)} of {count.made + len(count.failed)} runs failed: {named}")


def _refuse_another_machine(stores: Iterable[Store]) -> None:
    here = json.loads(json.dumps(machine()))
    for kept in stores:
        if changed := [name for name, value in here.items() if kept.facts["machine"].get(name) != value]:
            raise UsageError(
                f"--results_dir: {kept.paths[1]} was measured with another {', '.join(changed)}; "
                "name another folder, or delete the results of all experiments and measure them again"
            )


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, __doc__)), FINISHED))
