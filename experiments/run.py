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

if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    end_while_loading("finished runs are kept, and the same command continues from there")

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from tyro.conf import Positional, arg

from experiments import tables
from experiments.cases import COMPARED
from experiments.grid import FINISHED, Count, Experiment, hardware
from experiments.measured import of_size
from experiments.real import Runs
from experiments.text_cases import SELDOM, TEXT
from experiments.virtual_cases import CODED, METHODS
from gradwire import Options
from gradwire.command_line import parse, run_command
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import UsageError, unknown
from gradwire.core.records.tables import aligned
from gradwire.core.training.checks import resolve
from gradwire.core.workloads import datasets


@dataclass(frozen=True)
class Settings:
    """Which runs, and where things are."""

    experiment: Annotated[str, Positional, arg(metavar="EXPERIMENT")]
    """The experiment whose runs are made, or all."""
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


def main(settings: Settings) -> None:
    """Make the runs that are not there yet. Raises UsageError; RunFailed at the end if a run failed."""
    if settings.results_dir == "":
        raise UsageError("--results_dir: is empty; name a folder, or leave it out")
    experiments = of_size(settings.quick)
    if settings.experiment not in (names := (*experiments, "all")):
        raise unknown("experiment", settings.experiment, names)
    chosen = list(experiments) if settings.experiment == "all" else [settings.experiment]
    chosen = [METHODS, CODED] if chosen == [CODED] else chosen
    device = resolve(Options(device=settings.device)).device
    directory = Path(settings.results_dir or Path("results") / ("quick" if settings.quick else hardware(device)))
    of = "text" if {TEXT, SELDOM}.issuperset(chosen) else "digits" if settings.quick else "fashion_mnist"
    datasets.load(Options(dataset=of, data_dir=settings.data_dir, download=settings.download))
    check_writable_by("results_dir", directory)
    kept = {
        name: experiment.open(directory) for name, experiment in experiments.items() if name in (*COMPARED, *chosen)
    }
    measured = [store for store in kept.values() if isinstance(store, Runs)]  # which share runs
    for name in chosen:
        if experiments[name].missing(directory):
            for store in measured if kept[name] in measured else [kept[name]]:
                store.refuse_another_machine()
    common, count = {"device": device, "data_dir": settings.data_dir}, Count()

    def make(experiment: Experiment, store: Any, runs: list[Any]) -> bool:
        """Make the runs that are not there, nor in another store; return whether all are there."""
        for run in runs if isinstance(store, Runs) else ():
            having = next((other for other in measured if other.has(run)), None)
            if having is not None and not store.has(run):
                store.add(run, (having.rows(str(run.run_name)), having.runs[str(run.run_name)]))
        lacking = [run for run in runs if not store.has(run)]
        count.there += len(runs) - len(lacking)
        jobs = experiment.results(store, lacking, common)
        count.collect(((str(run.run_name), partial(store.add, run), result) for run, result in jobs), len(lacking))
        return all(map(store.has, runs))

    for name in chosen:
        experiment, store = experiments[name], kept[name]
        tuned = make(experiment, store, experiment.grid())
        absent = [file for file in experiment.files if not (directory / file).exists()]
        count.collect(((file, experiment.files[file], directory / file) for file in absent), len(absent))
        if tuned:
            make(experiment, store, experiment.finals(experiment.tuned(store)))
    if METHODS in chosen:
        print(aligned(tables.grouped(kept[METHODS].of("final"), *tables.METHODS), left=1))
    rows = {"runs made": count.made, "there already": count.there, "failed": len(count.failed)}
    print(aligned([(name, str(n)) for name, n in rows.items()], left=1))
    print(f"results in {directory}; what is there is not made again, unless its file is deleted")
    count.check()


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(parse(sys.argv[1:], Settings, __doc__)), FINISHED))
