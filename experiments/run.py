"""Make the data of the notebooks again: results/HARDWARE/EXPERIMENT.csv and .json.

python experiments/run.py param_server      # or ring_all_reduce, scaling, server_family, cluster, dgs, compression,
                                            # whole_family, all

python experiments/run.py all --quick       # all of it small, in a few minutes: digits, one seed

On 2 cores with nothing else running: param_server 12 minutes, ring_all_reduce 15, scaling 26, server_family 10, cluster
6, dgs 5, compression 16 with dgs, whole_family 25; together 96, for they share runs. The data set is Fashion-MNIST;
`--download` lets torchvision fetch it. Runs that are there already are skipped, so an interrupted command continues
where it was, and experiments can be made one by one. A run that fails is reported, and the others are still made.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from records.interrupts import end_while_loading

KEPT = "finished runs are kept, and the same command continues from there"
if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    end_while_loading(KEPT)

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import pandas as pd
from tqdm import tqdm
from tyro.conf import Positional

from experiments import (
    cluster,
    compression,
    compression_plots,
    family_runs,
    lost_updates,
    ring_animation,
    whole_family,
)
from experiments.cluster import CLUSTER
from experiments.compression import CODED, METHODS
from experiments.family_runs import FAMILY, LOST_UPDATES
from experiments.runs import EXPERIMENTS, TIMELINE, declared, hardware
from experiments.store import DIVERGED, Store
from experiments.whole_family import WHOLE
from records.errors import RunFailed, UsageError
from records.files import (
    EVENTS_SUFFIX,
    check_writable,
    git_commit,
    load_events,
    load_metadata,
    load_table,
    machine,
    write_atomically,
)
from records.staleness import histogram
from records.tables import aligned
from training import Options, run
from training.checks import resolve
from training.command_line import guarded, parse
from workloads import datasets

EVERY = (*EXPERIMENTS, FAMILY)  # that are kept in a Store
CLUSTER_EXPERIMENT, METHODS_EXPERIMENT, CODED_EXPERIMENT = "cluster", "dgs", "compression"
WHOLE_EXPERIMENT = "whole_family"
SIMULATED: dict[str, dict[str, Callable[..., None]]] = {  # in virtual time, all or some, with their files
    CLUSTER_EXPERIMENT: {CLUSTER: cluster.record},
    METHODS_EXPERIMENT: {METHODS: compression.record},
    CODED_EXPERIMENT: {METHODS: compression.record, CODED: compression.record},
    WHOLE_EXPERIMENT: {WHOLE: whole_family.record},
}
RING_TRACE = "ring_trace.csv"  # the exchange that is drawn as an animation
WORK = ".work"  # where runs write their own files, until they are collected


@dataclass(frozen=True)
class Settings:
    """Which runs, and where things are."""

    experiment: Positional[
        Literal[
            "param_server",
            "ring_all_reduce",
            "scaling",
            "server_family",
            "cluster",
            "dgs",
            "compression",
            "whole_family",
            "all",
        ]
    ]
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
class _Work:
    """The results in one folder, and what was done: runs made, there already, and failed."""

    directory: Path
    stores: dict[str, Store]
    common: Mapping[str, Any]  # options of all runs: where, on what
    made: list[str] = field(default_factory=list)
    there: int = 0
    failed: list[str] = field(default_factory=list)

    def do(self, runs: Sequence[tuple[Options, Sequence[str]]], others: Mapping[str, Callable[[Path], object]]) -> None:
        """Make the runs for their experiments, and the other files, that are not there; continue after a failure."""
        jobs: dict[str, Callable[[], object]] = {}
        for one, experiments in runs:
            lacking = [self.stores[name] for name in experiments if not self.is_made(one, name)]
            having = next((name for name in self.stores if self.is_made(one, name)), None)
            if lacking and having is None:
                jobs[str(one.run_name)] = partial(self.make, one, lacking)
                continue
            for store in lacking:
                store.copy(str(one.run_name), self.stores[str(having)])
            self.there += 1
        for name, record in others.items():
            if not (self.directory / name).exists():
                jobs[name] = partial(record, self.directory / name)
        bar = tqdm(jobs.items(), unit="run")
        for name, job in bar:
            bar.set_description(name)
            with _interrupts_of_destructors():
                try:
                    job()
                    self.made.append(name)
                except (RunFailed, UsageError, OSError) as error:
                    self.failed.append(name)
                    bar.write(f"failed: {name}: {' '.join(str(error).split())}", file=sys.stderr)

    def is_made(self, one: Options, experiment: str) -> bool:
        """Return whether an experiment has this run, and the events if these are to be drawn."""
        events = self.directory / f"{one.run_name}{EVENTS_SUFFIX}"
        return self.stores[experiment].has(self.placed(one)) and (not _is_drawn(one) or events.exists())

    def placed(self, one: Options) -> Options:
        """Return the run with its device, and with the folders that it uses."""
        return replace(one, results_dir=str(self.directory / WORK), **self.common)

    def make(self, one: Options, stores: Sequence[Store]) -> None:
        """Make one run, and collect it. That a learning rate of the grid diverges is a result.

        Raises RunFailed, UsageError, OSError.
        """
        one, name = self.placed(one), str(one.run_name)
        path = Path(one.results_dir) / name
        try:
            run(one, quiet=True)
            metadata, table = load_metadata(f"{path}.json"), load_table(f"{path}.csv")
            stale = one.events and one.strategy.traits.asynchronous and not family_runs.is_of_grid(one)
            staleness = histogram(load_events(path)) if stale else None
            if _is_drawn(one):
                with write_atomically(self.directory / f"{name}{EVENTS_SUFFIX}") as temporary:
                    shutil.copy(f"{path}{EVENTS_SUFFIX}", temporary)
        except RunFailed as error:
            if not family_runs.is_of_grid(one) or "take a smaller --lr" not in str(error):
                raise
            metadata = {"options": one.recorded(), "machine": machine(), "git_commit": git_commit()}
            metadata |= {DIVERGED: str(error)}
            table, staleness = pd.DataFrame(), None
        finally:
            shutil.rmtree(one.results_dir, ignore_errors=True)
        for store in stores:
            store.add(name, table, metadata, staleness)


def _is_drawn(one: Options) -> bool:
    return str(one.run_name).startswith(TIMELINE)


@contextmanager
def _interrupts_of_destructors() -> Iterator[None]:
    """Raise after the block an interrupt that came while a destructor ran: there Python only prints exceptions."""
    came: list[KeyboardInterrupt] = []

    def note(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            came.append(KeyboardInterrupt(*unraisable.exc_value.args))
        else:
            former(unraisable)

    former, sys.unraisablehook = sys.unraisablehook, note
    try:
        yield
    finally:
        sys.unraisablehook = former
    if came:
        raise came[0]


def main(settings: Settings) -> None:
    """Make the runs that are not there yet. Raises UsageError; RunFailed at the end if a run failed."""
    if settings.results_dir == "":
        raise UsageError("--results_dir: is empty; name a folder, or leave it out")
    chosen = (*EVERY, *SIMULATED) if settings.experiment == "all" else (settings.experiment,)
    runs = _declared([name for name in chosen if name in EXPERIMENTS], settings.quick)
    tuning = [*family_runs.tuning(settings.quick), family_runs.timeline(settings.quick)] if FAMILY in chosen else []
    first = [*(one for one, _ in runs), *tuning, declared(EVERY[0], settings.quick)[0]][0]
    device = resolve(replace(first, device=settings.device)).device
    directory = Path(settings.results_dir or Path("results") / ("quick" if settings.quick else hardware(device)))
    datasets.load(first.dataset, settings.data_dir, settings.download)  # its absence is not each run's failure
    try:
        check_writable(directory)
        shutil.rmtree(directory / WORK, ignore_errors=True)  # of a command that was killed
    except OSError as error:
        raise UsageError(f"--results_dir: cannot write in {directory}: {error.strerror or error}") from error
    stores = {name: Store.load(directory, name) for name in EVERY}
    _refuse_another_machine(stores)
    work = _Work(directory, stores, {"device": device, "data_dir": settings.data_dir})
    if runs:
        work.do(runs, {RING_TRACE: ring_animation.record} if "ring_all_reduce" in chosen else {})
    if tuning:
        work.do([(one, [FAMILY]) for one in tuning], {LOST_UPDATES: lost_updates.record})
        if all(work.is_made(one, FAMILY) for one in tuning):
            rates = family_runs.tuned(family_runs.grid(stores[FAMILY], settings.quick))
            work.do([(one, [FAMILY]) for one in family_runs.finals(rates, settings.quick)], {})
    files = {name: make for one in chosen for name, make in SIMULATED.get(one, {}).items()}
    if files:
        settled = {
            name: partial(make, data_dir=settings.data_dir, quick=settings.quick) for name, make in files.items()
        }
        work.do([], settled)
    if METHODS_EXPERIMENT in chosen and (directory / METHODS).exists():
        print(aligned(compression_plots.methods_table(compression.load_rows(directory / METHODS)), left=1))
    rows = [("runs made", len(work.made)), ("there already", work.there), ("failed", len(work.failed))]
    print(aligned([(name, str(n)) for name, n in rows], left=1))
    print(f"results in {directory}; what is there is not made again, unless its file is deleted")
    if work.failed:
        named = ", ".join(work.failed[:3]) + (", ..." if len(work.failed) > 3 else "")
        raise RunFailed(f"{len(work.failed)} of {len(work.made) + len(work.failed)} runs failed: {named}")


def _declared(experiments: Sequence[str], quick: bool) -> list[tuple[Options, list[str]]]:
    """Return the runs of some experiments, each once with the experiments that it is of; seed by seed."""
    runs: dict[str, tuple[Options, list[str]]] = {}
    for name in experiments:
        for one in declared(name, quick):
            runs.setdefault(str(one.run_name), (one, []))[1].append(name)
    return sorted(runs.values(), key=lambda run: run[0].seed)


def _refuse_another_machine(stores: Mapping[str, Store]) -> None:
    here = json.loads(json.dumps(machine()))
    for store in stores.values():
        for entry in store.metadata.values():
            if entry["machine"] != here:
                changed = [name for name, value in here.items() if entry["machine"].get(name) != value]
                raise UsageError(
                    f"--results_dir: {store.paths[1]} was measured with another {', '.join(changed)}; "
                    "name another folder, or delete the results of all experiments and measure them again"
                )


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, __doc__)), KEPT))
