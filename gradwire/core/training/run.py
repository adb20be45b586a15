"""A whole run: check the options, load the data, start the ranks, write the records."""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pandas as pd

from gradwire.core.launchers import Job, Launcher
from gradwire.core.records.interrupts import number_of
from gradwire.core.records.unfinished import run_lock
from gradwire.core.training.checks import prepare, resolve
from gradwire.core.training.options import CoreOptions
from gradwire.core.training.orders import Orders, carry_out
from gradwire.core.training.progress import REPORTER, Progress, ProgressBar
from gradwire.core.training.report import conclude, describe_place, remarks, write


def run(options: CoreOptions, quiet: bool = False, launcher: Launcher | None = None) -> pd.DataFrame:
    """Train as `options` say, write the records, and return the table of epochs and ranks (as in the CSV).

    Under torchrun and mpirun every process calls this; all but rank 0 get an empty table. `quiet`: no progress bar,
    no summary.
    `launcher`: how the ranks are started, by default as this process was.
    Raises UsageError for errors that the user can cure, RunFailed when a rank fails.
    """
    launcher = launcher or options.find_launcher()
    options = resolve(options, launcher)
    launcher.warm_up()
    data = prepare(options, launcher)
    if not quiet and launcher.is_first:
        print("\n".join([describe_place(options, launcher), *remarks(options, launcher)]), file=sys.stderr)
    of_ranks = dataclasses.replace(options, dataset=str(options.dataset))  # whose data are sent, not what made them
    n_steps = options.epochs * options.plan(data.n_train).n_steps
    with ExitStack() as stack:
        for wing in options.wings:
            stack.enter_context(wing.around(options, launcher, quiet))
        stack.enter_context(_telling_what_is_written(options))
        # All ranks write unfinished files into the folder of the first process.
        claim = run_lock(options.results_dir, str(options.run_name)) if launcher.is_first else nullcontext(Path())
        folder = stack.enter_context(claim)
        watchers = [*(watcher for wing in options.wings for watcher in wing.watchers(of_ranks)), Progress()]
        quiet_bar = quiet or not launcher.is_first
        with ProgressBar(n_steps, options.strategy.name, launcher.clock, quiet_bar) as bar:
            everything = launcher.launch(
                Job(
                    carry_out, options.world_size, (Orders(of_ranks, folder.absolute(), watchers), data),
                    device=options.device, timeout=options.timeout, roles=options.roles, record=options.events,
                    on_report=bar, expendable=expendable(options), restarts=options.restarts, seed=options.seed,
                    link=options.link if launcher.processes else None,
                )
            )  # fmt: skip
        if not launcher.is_first:
            return pd.DataFrame()
        results = [result for result in everything if result is not None]
        table, facts = write(options, results, data, launcher)
        conclude(options, table, facts, data.n_train, quiet, launcher)
    return table


@contextmanager
def _telling_what_is_written(options: CoreOptions) -> Iterator[None]:
    """Name the files already written in the message of an interrupt of the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = number_of(interrupt)
        records = Path(options.results_dir) / f"{options.run_name}.json"
        if records.exists():  # there was none when the run began
            raise KeyboardInterrupt(number, f"the records are written: {records}") from interrupt
        raise


def expendable(options: CoreOptions) -> list[int]:
    """Return the ranks whose death does not end the run."""
    workers = [rank for rank, role in enumerate(options.roles) if role == "worker" and rank != REPORTER]
    return workers if options.strategy.traits.workers_may_die else []
