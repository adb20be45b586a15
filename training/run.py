"""A whole run: check the options, load the data, start the ranks, write the records."""

import dataclasses
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from checkpoints import replay
from checkpoints.evaluator import Evaluator
from checkpoints.folder import in_training, latest, listed
from launchers import Launcher, find_launcher
from records import files, tables
from records.errors import RunFailed, UsageError
from records.events import RunEvents
from records.sources import digests
from records.unfinished import claimed
from strategies import Strategy
from strategies.common.builtin import Builtin
from strategies.common.forms import sources
from training.checks import resolve
from training.loop import REPORTER, Job, RankResult, train_rank
from training.options import Options
from training.preflight import prepare


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
        print("\n".join([_where(options, launcher), *_remarks(options, launcher)]), file=sys.stderr)
    if options.resume:  # one checkpoint for all ranks, whatever is written meanwhile
        options = dataclasses.replace(options, resume=str(latest(options.resume)))
    evaluator = Evaluator(options.evaluator, options.checkpoint_folder, options.timeout)
    with _telling_what_is_written(options), evaluator, _claimed(options, launcher) as folder:
        with (
            _writing(options, evaluator, launcher),
            _Progress(options, data.n_train, quiet, launcher) as progress,
        ):
            everything = launcher.launch(
                train_rank, options.world_size, Job(options, folder, options.checkpoint_folder.absolute()), data,
                device=options.device, timeout=options.timeout, roles=options.roles, record=options.events,
                on_report=progress, expendable=expendable(options), restarts=options.restarts, seed=options.seed,
                link=options.link if launcher.processes else None,
            )  # fmt: skip
        if not launcher.is_first:
            return pd.DataFrame()
        results = [result for result in everything if result is not None]
        table = _write(options, results, data.n_train, launcher)
        _conclude(options, results, table, data.n_train, quiet, launcher)
        evaluator.finish(quiet)
    return table


@contextmanager
def _claimed(options: Options, launcher: Launcher) -> Iterator[Path]:
    """Hold the name of the run; yield the folder of what is not finished, the first process's for all ranks."""
    assert options.run_name is not None
    if not launcher.is_first:
        yield Path()
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(claimed(options.results_dir, options.run_name))
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"--results_dir: cannot write in {options.results_dir}: {why}") from error
        yield folder.absolute()


@contextmanager
def _telling_what_is_written(options: Options) -> Iterator[None]:
    """Let an interrupt of the block say what is on the disk."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
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


@contextmanager
def _writing(options: Options, evaluator: Evaluator, launcher: Launcher) -> Iterator[None]:
    """Hold the folder of the checkpoints, if there are to be any, and have them scored."""
    if not options.checkpoint_every or not launcher.is_first:
        yield
        return
    with in_training(options.checkpoint_folder):
        evaluator.start()
        yield


def _where(options: Options, launcher: Launcher) -> str:
    """Return in one line what must be known of where the ranks run."""
    if not launcher.processes:
        return f"{options.world_size} ranks in {launcher.name}, in one process."
    if isinstance(options.strategy, Builtin) and (remark := options.strategy.notice(options.n_gpus or 1)):
        return remark
    if options.device == "cpu":
        return f"No GPU in use: {options.world_size} CPU process(es)."
    gpus = torch.cuda.device_count()
    if gpus < options.world_size:
        return f"Warning: {options.world_size} processes share {gpus} GPU(s); timings will show it."
    return f"{options.world_size} process(es), one GPU each."


def _evaluated(strategy: Strategy) -> str:
    """Return in one line which parameters the accuracy is of, where the replicas may differ."""
    shown = " ".join((type(strategy).model.__doc__ or "").split("\n\n")[0].split())
    return f"The replicas may differ; the accuracy is that of {shown.removeprefix('Return ')}"


def _remarks(options: Options, launcher: Launcher) -> list[str]:
    """Return what else a user should know of the options."""
    strategy, remarks = options.strategy, []
    if not strategy.traits.agree:
        remarks.append(_evaluated(strategy))
    if strategy.traits.workers_may_die and not launcher.restarts:
        remarks.append(f"Under {launcher.name} the death of any process ends the run; without it, workers may die.")
    for name, value in options.own_defaults.items():
        if getattr(options, name) == value:
            owner = strategy.name if name in strategy.traits.defaults else f"--codec {options.codec.name}"
            remarks.append(f"--{name} {value} (the default of {owner})")
    if strategy.traits.defaults.get("momentum") == 0 and options.optimizer == "sgd" and options.momentum:
        remarks.append("Late gradients act like momentum: if it does not learn, try --momentum 0.")
    return remarks


class _Progress:
    """One progress bar, in the process that gets the results, for all ranks."""

    def __init__(self, options: Options, n_train: int, quiet: bool, launcher: Launcher) -> None:
        total, disable = options.epochs * options.plan(n_train).n_steps, quiet or not launcher.is_first
        self._bar = tqdm(total=total, unit="step", disable=disable, leave=False, desc=options.strategy.name)
        self._clock = launcher.clock
        self._accuracy = ""

    def __call__(self, rank: int, value: tuple[str, Any]) -> None:
        kind, amount = value
        if kind == "accuracy":
            self._accuracy = f"test accuracy {amount:.4f}"
        time = [f"{self._clock():.3g} virtual s"] if self._clock else []
        self._bar.set_postfix_str(", ".join([*time, *filter(None, [self._accuracy])]), refresh=False)
        if kind == "step":
            self._bar.update(amount - self._bar.n)
        else:
            self._bar.refresh()

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _samples_unused(
    options: Options, table: pd.DataFrame, n_train: int, deaths: Sequence[Mapping[str, Any]]
) -> dict[str, int | None]:
    """Return how many samples, of all epochs, no update has used, and how many of these were parts of dead workers.

    The others came too late, or were skipped. None where other workers give them, or it is not known.
    """
    unused = of_the_dead = None
    traits = options.strategy.traits
    if traits.workers_may_die and not traits.asynchronous and not options.resume:
        plan, roles = options.plan(n_train), options.roles
        unused = int((n_train - table.loc[table["role"] == tables.SERVER, "samples"]).sum())
        of_the_dead = 0
        for death in deaths:
            worker = roles[: death["rank"]].count("worker")
            for step in range(death["step"], options.epochs * plan.n_steps):
                start, stop = plan.part_bounds(step % plan.n_steps, worker)
                of_the_dead += stop - start
    return {"samples_unused": unused, "samples_unused_of_dead_workers": of_the_dead}


def _unused_line(unused: Mapping[str, int | None], total: int) -> str:
    all_of_them, of_the_dead = unused["samples_unused"], unused["samples_unused_of_dead_workers"]
    return f"unused samples {all_of_them} of {total}, {of_the_dead} of them the parts of dead workers"


def _write(options: Options, results: list[RankResult], n_train: int, launcher: Launcher) -> pd.DataFrame:
    """Write the records and the model; return the table. Raises RunFailed."""
    assert options.run_name is not None
    strategy, name = options.strategy, options.strategy.name
    events = RunEvents(result.events for result in results)
    table = tables.epoch_table(events, name, options.n_gpus or 1, options.roles)
    carried_by, bytes_source = launcher.transport, "counted"
    if isinstance(strategy, Builtin):
        carried_by, bytes_source = strategy.transport_name, strategy.bytes_source
        if bytes_source.startswith("not counted"):
            table[list(tables.MESSAGE_COLUMNS)] = None
            table = table.astype(tables.COLUMNS)
    hashes = _hashes(results)
    deaths = [death for result in results for death in result.deaths]
    clocks = {result.rank: result.alignment._asdict() for result in results if result.alignment}
    metadata = {
        "strategy": name,
        "n_gpus": options.n_gpus,
        "processes": options.world_size,
        "roles": options.roles,
        **tables.totals(table),
        "replicas_identical": len(set(hashes.values())) == 1,
        "parameter_hash": hashes,
        "optimizer_bytes": {result.rank: result.optimizer_bytes for result in results},
        "threads": {result.rank: result.threads for result in results},
        "deaths": deaths,
        **_samples_unused(options, table, n_train, deaths),
        "staleness_of": _applied(results),
        "arrivals": " ".join(str(rank) for result in results for rank in result.arrivals),
        "options": options.recorded(),
        "transport": carried_by,
        "bytes": bytes_source,
        "sources": digests(sources(type(strategy))),
        "remark": _where(options, launcher) + ("" if strategy.traits.agree else f" {_evaluated(strategy)}"),
        **launcher.facts,
        **({"clocks": clocks} if clocks else {}),
        "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "machine": files.machine(),
        "git_commit": files.git_commit(),
    }
    saved = next((result.saved_model for result in results if result.saved_model is not None), None)
    model = {} if saved is None or options.save is None else {options.save: saved}
    try:
        files.write_run(options.results_dir, options.run_name, events, table, metadata, model)
    except OSError as error:
        where = error.filename or options.results_dir
        raise RunFailed(f"cannot write {where}: {error.strerror}; no records were written") from error
    return table


def _hashes(results: list[RankResult]) -> dict[int, str]:
    return {result.rank: result.parameter_hash for result in results}


def _applied(results: list[RankResult]) -> str:
    """Return what a server has applied one by one; "gradient" where there is none."""
    return next((result.applied for result in results if result.applied), "gradient")


def _conclude(
    options: Options, results: list[RankResult], table: pd.DataFrame, n_train: int, quiet: bool, launcher: Launcher
) -> None:
    """Show the summary; compare the parameters. Raises RunFailed if some differ that must not."""
    strategy, hashes = options.strategy, _hashes(results)
    if not quiet:
        where = {"device": options.device} if launcher.processes else {"time": "virtual"}
        world = {"strategy": strategy.name, "n_gpus": options.n_gpus, **where}
        world |= {"dataset": options.dataset, "model": options.model}
        print(tables.summary(table, world, _applied(results)))
        if strategy.traits.asynchronous and (workers := options.roles.count("worker")) > 1:
            print(
                f"compare with   --strategy single --workers_like {workers}: one process on the same batches.\n"
                "               Stale gradients need a smaller --lr the more workers there are."
            )
        deaths = [death for result in results for death in result.deaths]
        if died := sorted({death["rank"] for death in deaths if not death["returned"]}):
            print(f"died           rank {', '.join(map(str, died))}; the others went on")
        unused = _samples_unused(options, table, n_train, deaths)
        if unused["samples_unused"]:
            print(_unused_line(unused, options.epochs * n_train))
        if sizes := {one.rank: one.optimizer_bytes / 1e6 for one in results if one.optimizer_bytes}:
            print(f"optimizer MB   of state, by rank {tables.by_rank(sizes)}")
        if options.checkpoint_every and not listed(options.checkpoint_folder):
            print(f"no checkpoint was written: nobody who writes them came to step {options.checkpoint_every}")
        print(f"records        {Path(options.results_dir) / str(options.run_name)}.{{csv,json,events.csv.gz}}")
    if options.replay:
        replay.compare(options.replay, hashes[REPORTER], quiet)
    if strategy.traits.agree and len(set(hashes.values())) > 1:
        raise RunFailed(f"the replicas differ at the end, which {strategy.name} must never let happen: {hashes}")
