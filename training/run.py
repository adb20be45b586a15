"""A whole run: check the options, load the data, start the ranks, write the records."""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from checkpoints import replay
from checkpoints.evaluator import Evaluator
from checkpoints.folder import in_training, latest
from launchers import Launcher, find_launcher
from records import files, tables
from records.errors import RunFailed
from strategies.common.builtin import Builtin
from training.checks import resolve
from training.loop import REPORTER, RankResult, train_rank
from training.options import Options
from training.preflight import prepare


def run(options: Options, quiet: bool = False) -> pd.DataFrame:
    """Train as `options` say, write the records, and return the table of epochs and ranks (as in the CSV).

    Under torchrun every process calls this; all but rank 0 get an empty table. `quiet`: no progress bar, no summary.
    Raises UsageError for what the user can cure, RunFailed when a rank fails.
    """
    options = resolve(options)
    launcher = find_launcher()
    launcher.warm_up()
    data = prepare(options)
    if not quiet and launcher.is_first:
        print("\n".join([_where(options), *_remarks(options)]), file=sys.stderr)
    if options.resume:  # one checkpoint for all ranks, whatever is written meanwhile
        options = dataclasses.replace(options, resume=str(latest(options.resume)))
    with Evaluator(options.evaluator, options.checkpoint_folder, options.timeout) as evaluator:
        with (
            _writing(options, evaluator, launcher),
            _Progress(options, data.n_train, quiet or not launcher.is_first) as progress,
        ):
            everything = launcher.launch(
                train_rank, options.world_size, options, data,
                device=options.device, timeout=options.timeout, roles=options.roles, record=options.events,
                on_report=progress, expendable=_expendable(options), restarts=options.restarts, seed=options.seed,
            )  # fmt: skip
        if not launcher.is_first:
            return pd.DataFrame()
        results = [result for result in everything if result is not None]
        table = _write(options, results, data.n_train, quiet, launcher)
        evaluator.finish(quiet)
    return table


def _expendable(options: Options) -> list[int]:
    roles = enumerate(options.roles)
    return [rank for rank, role in roles if role == "worker"] if options.strategy.workers_may_die else []


@contextmanager
def _writing(options: Options, evaluator: Evaluator, launcher: Launcher) -> Iterator[None]:
    """Hold the folder of the checkpoints, if there are to be any, and have them scored."""
    if not options.checkpoint_every or not launcher.is_first:
        yield
        return
    with in_training(options.checkpoint_folder):
        evaluator.start()
        yield


def _where(options: Options) -> str:
    """Return in one line what must be known of where the processes run."""
    if remark := options.strategy.notice(options.n_gpus or 1):
        return remark
    if options.device == "cpu":
        return f"No GPU in use: {options.world_size} CPU process(es)."
    gpus = torch.cuda.device_count()
    if gpus < options.world_size:
        return f"Warning: {options.world_size} processes share {gpus} GPU(s); timings will show it."
    return f"{options.world_size} process(es), one GPU each."


def _remarks(options: Options) -> list[str]:
    """Return what else a user should know of the options."""
    strategy, remarks = options.strategy, []
    launcher = find_launcher()
    if strategy.workers_may_die and not launcher.restarts:
        remarks.append(f"Under {launcher.name} the death of any process ends the run; without it, workers may die.")
    for name, value in strategy.defaults.items():
        if getattr(options, name) == value:
            remarks.append(f"--{name} {value} (the default of {strategy.name})")
    if strategy.defaults.get("momentum") == 0 and options.optimizer == "sgd" and options.momentum:
        remarks.append("Late gradients act like momentum: if it does not learn, try --momentum 0.")
    return remarks


class _Progress:
    """One progress bar, in the process that gets the results, for all ranks."""

    def __init__(self, options: Options, n_train: int, quiet: bool) -> None:
        total = options.epochs * options.plan(n_train).n_steps
        self._bar = tqdm(total=total, unit="step", disable=quiet, leave=False, desc=options.strategy.name)

    def __call__(self, rank: int, value: tuple[str, Any]) -> None:
        kind, amount = value
        if kind == "step":
            self._bar.update(amount - self._bar.n)
        else:
            self._bar.set_postfix_str(f"test accuracy {amount:.4f}")

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _samples_lost(options: Options, table: pd.DataFrame, n_train: int) -> int | None:
    """Return how many samples, of all epochs, no update has used; None where others give them, or it is not known."""
    if not options.strategy.workers_may_die or options.strategy.asynchronous or options.resume:
        return None
    server = table[table["role"] == tables.SERVER]
    return int((n_train - server["samples"]).sum())


def _write(options: Options, results: list[RankResult], n_train: int, quiet: bool, launcher: Launcher) -> pd.DataFrame:
    """Write the records and the model; show the summary. Raises RunFailed if replicas differ that must not."""
    assert options.run_name is not None
    strategy, name = options.strategy, options.strategy.name
    events = pd.concat([result.events for result in results], ignore_index=True)
    table = tables.epoch_table(events, name, options.n_gpus or 1, options.roles)
    carried_by, bytes_source = launcher.transport, "counted"
    if isinstance(strategy, Builtin):
        carried_by, bytes_source = strategy.transport_name, strategy.bytes_source
        if bytes_source.startswith("not counted"):
            table[list(tables.MESSAGE_COLUMNS)] = None
            table = table.astype(tables.COLUMNS)
    hashes = {result.rank: result.parameter_hash for result in results}
    identical = len(set(hashes.values())) == 1
    optimizer_bytes = {result.rank: result.optimizer_bytes for result in results}
    metadata = {
        "strategy": name,
        "n_gpus": options.n_gpus,
        "processes": options.world_size,
        "roles": options.roles,
        **tables.totals(table),
        "replicas_identical": identical,
        "parameter_hash": hashes,
        "optimizer_bytes": optimizer_bytes,
        "deaths": [death for result in results for death in result.deaths],
        "samples_lost": _samples_lost(options, table, n_train),
        "arrivals": " ".join(str(rank) for result in results for rank in result.arrivals),
        "options": options.recorded(),
        "transport": carried_by,
        "bytes": bytes_source,
        "remark": _where(options),
        "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "machine": files.machine(),
        "git_commit": files.git_commit(),
    }
    saved = next((result.saved_model for result in results if result.saved_model is not None), None)
    model = {} if saved is None or options.save is None else {options.save: saved}
    try:
        paths = files.write_run(options.results_dir, options.run_name, events, table, metadata, model)
    except OSError as error:
        where = error.filename or options.results_dir
        raise RunFailed(f"cannot write {where}: {error.strerror}; nothing was written") from error
    if not quiet:
        world = {"strategy": name, "n_gpus": options.n_gpus, "device": options.device}
        print(tables.summary(table, world | {"dataset": options.dataset, "model": options.model}))
        if sizes := [f"{rank}: {nbytes / 1e6:.1f}" for rank, nbytes in optimizer_bytes.items() if nbytes]:
            print(f"optimizer MB   of state, by rank {', '.join(sizes)}")
        print(f"records        {paths['table'].with_suffix('')}.{{csv,json,events.csv.gz}}")
    if options.replay:
        replay.compare(options.replay, hashes[REPORTER], quiet)
    if strategy.replicas_agree and not identical:
        raise RunFailed(f"the replicas differ at the end, which {name} must never let happen: {hashes}")
    return table
