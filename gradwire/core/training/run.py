"""A whole run: check the options, load the data, start the ranks, write the records."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from gradwire.checkpoints.evaluator import Evaluator
from gradwire.checkpoints.folder import in_training, latest, listed
from gradwire.core.launchers import Job, Launcher, find_launcher
from gradwire.core.records.interrupts import number_of
from gradwire.core.records.unfinished import claimed
from gradwire.core.training.checks import resolve
from gradwire.core.training.evaluation import REPORTER
from gradwire.core.training.loop import train_rank
from gradwire.core.training.options import Options
from gradwire.core.training.preflight import prepare
from gradwire.core.training.report import conclude, describe_place, remarks, write


def run(options: Options, quiet: bool = False, launcher: Launcher | None = None) -> pd.DataFrame:
    """Train as `options` say, write the records, and return the table of epochs and ranks (as in the CSV).

    Under torchrun and mpirun every process calls this; all but rank 0 get an empty table. `quiet`: no progress bar,
    no summary.
    `launcher`: how the ranks are started, by default as this process was.
    Raises UsageError for what the user can cure, RunFailed when a rank fails.
    """
    launcher = launcher or find_launcher(options.launcher, options.scheduler)
    options = resolve(options, launcher)
    launcher.warm_up()
    data = prepare(options, launcher)
    if not quiet and launcher.is_first:
        print("\n".join([describe_place(options, launcher), *remarks(options, launcher)]), file=sys.stderr)
    if options.resume:  # one checkpoint for all ranks, whatever is written meanwhile
        options = dataclasses.replace(options, resume=str(latest(options.resume)))
    of_ranks = dataclasses.replace(options, dataset=str(options.dataset))  # whose data are sent, not what made them
    n_steps = options.epochs * options.plan(data.n_train).n_steps
    writes = options.checkpoint_every and launcher.is_first
    wanted = options.evaluator and launcher.is_first
    code = {"dataset": options.dataset, "model": options.model, "task": options.task}
    evaluator = Evaluator(options.checkpoint_folder, options.timeout, code) if wanted else None
    # The folder of what is not finished is the first process's, for all ranks.
    claim = claimed(options.results_dir, str(options.run_name)) if launcher.is_first else nullcontext(Path())
    with _telling_what_is_written(options), evaluator or nullcontext(), claim as folder:
        with (
            in_training(options.checkpoint_folder) if writes else nullcontext(),
            _Progress(n_steps, options.strategy.name, launcher.clock, quiet or not launcher.is_first) as progress,
        ):
            if evaluator:
                evaluator.start()
            folders = folder.absolute(), options.checkpoint_folder.absolute()
            everything = launcher.launch(
                Job(
                    train_rank, options.world_size, (of_ranks, data, *folders),
                    device=options.device, timeout=options.timeout, roles=options.roles, record=options.events,
                    on_report=progress, expendable=expendable(options), restarts=options.restarts, seed=options.seed,
                    link=options.link if launcher.processes else None,
                )
            )  # fmt: skip
        if not launcher.is_first:
            return pd.DataFrame()
        results = [result for result in everything if result is not None]
        table, facts = write(options, results, data, launcher)
        conclude(options, table, facts, data.n_train, quiet, launcher)
        if evaluator:
            evaluator.finish(quiet)
    return table


@contextmanager
def _telling_what_is_written(options: Options) -> Iterator[None]:
    """Add what is on the disk to the message of an interrupt of the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = number_of(interrupt)
        records = Path(options.results_dir) / f"{options.run_name}.json"
        if records.exists():  # there was none when the run began
            raise KeyboardInterrupt(number, f"the records are written: {records}") from interrupt
        if options.checkpoint_every and listed(options.checkpoint_folder):
            folder = options.checkpoint_folder
            raise KeyboardInterrupt(number, f"no records were written; --resume {folder} continues") from interrupt
        raise


def expendable(options: Options) -> list[int]:
    """Return the ranks whose death does not end the run."""
    workers = [rank for rank, role in enumerate(options.roles) if role == "worker" and rank != REPORTER]
    return workers if options.strategy.traits.workers_may_die else []


class _Progress(tqdm):
    """One progress bar, in the process that gets the results, for all ranks; called with what a rank reports."""

    def __init__(self, n_steps: int, name: str, clock: Callable[[], float] | None, quiet: bool) -> None:
        super().__init__(total=n_steps, unit="step", disable=quiet, leave=False, desc=name)
        self._clock = clock
        self._score = ""

    def __call__(self, rank: int, value: tuple[str, Any]) -> None:
        kind, amount = value
        if kind == "choice" and not self.disable:
            self.write(f"takes {amount}", file=sys.stderr)
        if kind == "score":
            name, score = amount
            self._score = f"test {name.replace('_', ' ')} {score:.4f}"
        time = [f"{self._clock():.3g} virtual s"] if self._clock else []
        self.set_postfix_str(", ".join([*time, *filter(None, [self._score])]), refresh=False)
        if kind == "step":
            self.update(amount - self.n)
        else:
            self.refresh()
