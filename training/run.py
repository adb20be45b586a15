"""A whole run: check the options, load the data, start the ranks, write the records."""

import dataclasses
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from launchers import find_launcher
from records import files, tables
from records.errors import RunFailed, UsageError, one_line
from training import checkpoints, replay
from training.evaluator import Evaluator
from training.options import Options
from training.rank import RankResult, build_model, train_rank
from workloads import datasets, models
from workloads.datasets import Data, LazyData


def run(options: Options, quiet: bool = False) -> pd.DataFrame:
    """Train as `options` say, write the records, and return the table of epochs and ranks (as in the CSV).

    Under torchrun every process calls this; all but rank 0 get an empty table. `quiet`: no progress bar, no summary.
    Raises UsageError for what the user can cure, RunFailed when a rank fails.
    """
    options = options.resolve()
    launcher = find_launcher()
    launcher.warm_up()
    data = prepare(options)
    if not quiet and launcher.is_first:
        print(_where(options), file=sys.stderr)
        if options.kind.own_pace and options.optimizer == "sgd" and options.momentum:
            print("Late gradients act like momentum: if it does not learn, try --momentum 0.", file=sys.stderr)
    if options.resume:  # one checkpoint for all ranks, whatever is written meanwhile
        options = dataclasses.replace(options, resume=str(checkpoints.latest(options.resume)))
    with Evaluator(options) as evaluator:
        at_once = launcher.world_size is None  # elsewhere only some processes hear of steps
        with _writing(options, evaluator), _Progress(options, data.n_train, quiet, at_once) as progress:
            everything = launcher.launch(
                train_rank, options.world_size, options, data,
                device=options.device, timeout=options.timeout, roles=options.roles, record=options.events,
                on_report=progress, expendable=_expendable(options), restarts=options.restarts,
            )  # fmt: skip
        if not launcher.is_first:
            return pd.DataFrame()
        results = [result for result in everything if result is not None]
        table = _write(options, results, data.n_train, quiet)
        evaluator.finish(quiet)
    return table


def _expendable(options: Options) -> list[int]:
    roles = enumerate(options.roles)
    return [rank for rank, role in roles if role == "worker"] if options.kind.workers_may_die else []


@contextmanager
def _writing(options: Options, evaluator: Evaluator) -> Iterator[None]:
    """Hold the folder of the checkpoints, if there are to be any, and have them scored; under torchrun by rank 0."""
    if not options.checkpoint_every or not find_launcher().is_first:
        yield
        return
    with checkpoints.in_training(options.checkpoint_folder):
        evaluator.start()
        yield


def prepare(options: Options) -> Data:
    """Find whatever is wrong before any process is started; return the data. Raises UsageError."""
    data = datasets.load(options.dataset, options.data_dir, options.download, options.train_size, options.seed)
    with torch.random.fork_rng(devices=[]):
        model = build_model(options, data)
        models.check(options.model, model, data.input_shape, data.n_classes)
        _check_smallest_batch(options, model, data)
        _check_epoch(options, data.n_train)
    if options.resume:
        checkpoints.check(options, sum(p.numel() for p in model.parameters() if p.requires_grad))
    if options.replay:
        replay.check(options)
    if find_launcher().shared_memory:
        _share(options, data)
    written = [("save", _parent(options.save)), ("results_dir", options.results_dir)]
    if options.checkpoint_every and find_launcher().is_first:
        checkpoints.check_folder(options)
        written.append(("checkpoint_dir", str(options.checkpoint_folder)))
    for option, directory in written:
        if directory is not None:
            try:
                files.check_writable(directory)
            except OSError as error:
                raise UsageError(f"--{option}: cannot write in {directory}: {error.strerror or error}") from error
    return data


def _check_epoch(options: Options, n_train: int) -> None:
    """Check that an epoch has what is asked of it before anything is sent or applied."""
    plan = options.plan(n_train)
    for name, there_are in (
        ("n_push", plan.n_steps),
        ("n_pull", plan.n_steps),
        ("aggregate", plan.n_steps * plan.workers),
    ):
        asked = getattr(options, name)
        if asked > max(1, there_are):
            raise UsageError(f"--{name} {asked}: an epoch has {there_are}; take fewer, or a smaller --batch_size")


def _check_smallest_batch(options: Options, model: nn.Module, data: Data) -> None:
    """Check that the model can train on the smallest piece of a batch: BatchNorm may need two samples."""
    plan = options.plan(data.n_train)
    last = plan.n_steps - 1
    start, stop = plan.bounds(last) if options.world_size == 1 else plan.part_bounds(last, plan.workers - 1)
    smallest = (stop - start) // min(options.accumulate, stop - start)
    if smallest == 1:
        try:
            model.train()(torch.zeros(1, *data.input_shape, dtype=options.torch_dtype))
        except ValueError as error:
            raise UsageError(
                f"--batch_size: the last batch leaves a worker one sample, on which --model {options.model} cannot "
                f"train ({one_line(error)}); change --batch_size, --train_size or --accumulate"
            ) from error


def _share(options: Options, data: Data) -> None:
    """Put the data where all ranks can read it."""
    try:
        if isinstance(data, LazyData):
            pickle.dumps(data)
        data.share_memory_()
    except RuntimeError as error:
        raise UsageError(
            f"--dataset {options.dataset}: no shared memory left for it (see df /dev/shm; in Docker, --shm-size 2g); "
            "take a smaller --train_size"
        ) from error
    except Exception as error:
        raise UsageError(
            f"--dataset {options.dataset}: cannot be given to other processes ({one_line(error)}); define transforms "
            "as functions of a module, and open files in __getitem__"
        ) from error


def _parent(path: str | None) -> str | None:
    if path is None:
        return None
    if Path(path).is_dir():
        raise UsageError(f"--save {path}: is a folder; give the name of a file")
    return str(Path(path).parent)


def _where(options: Options) -> str:
    """Return in one line what must be known of where the processes run."""
    if remark := options.kind.remark(options.n_gpus or 1):
        return remark
    if options.device == "cpu":
        return f"No GPU in use: {options.world_size} CPU process(es)."
    gpus = torch.cuda.device_count()
    if gpus < options.world_size:
        return f"Warning: {options.world_size} processes share {gpus} GPU(s); timings will show it."
    return f"{options.world_size} process(es), one GPU each."


class _Progress:
    """One progress bar for all ranks, in the process that hears of their steps: shown `at_once`, or with the first."""

    def __init__(self, options: Options, n_train: int, quiet: bool, at_once: bool) -> None:
        total = options.epochs * options.plan(n_train).n_steps
        self._make = partial(tqdm, total=total, unit="step", disable=quiet, leave=False, desc=options.strategy)
        self._bar = self._make() if at_once else None

    def __call__(self, rank: int, value: tuple[str, Any]) -> None:
        kind, amount = value
        if kind == "step":
            self._bar = self._bar or self._make()
            self._bar.update(amount - self._bar.n)
        elif self._bar is not None:
            self._bar.set_postfix_str(f"test accuracy {amount:.4f}")

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _samples_lost(options: Options, table: pd.DataFrame, n_train: int) -> int | None:
    """Return how many samples, of all epochs, no update has used; None where others give them, or it is not known."""
    if not options.kind.workers_may_die or options.kind.own_pace or options.resume:
        return None
    server = table[table["role"] == tables.SERVER]
    return int((n_train - server["samples"]).sum())


def _write(options: Options, results: list[RankResult], n_train: int, quiet: bool) -> pd.DataFrame:
    """Write the records and the model; show the summary. Raises RunFailed if replicas differ that must not."""
    assert options.run_name is not None
    events = pd.concat([result.events for result in results], ignore_index=True)
    table = tables.epoch_table(events, options.strategy, options.n_gpus or 1, options.roles)
    if options.kind.bytes_are.startswith("not counted"):
        table[list(tables.MESSAGE_COLUMNS)] = None
        table = table.astype(tables.COLUMNS)
    totals = tables.totals(table)
    hashes = {result.rank: result.parameter_hash for result in results}
    identical = len(set(hashes.values())) == 1
    metadata = {
        "strategy": options.strategy,
        "n_gpus": options.n_gpus,
        "processes": options.world_size,
        "roles": options.roles,
        **totals,
        "replicas_identical": identical,
        "parameter_hash": hashes,
        "deaths": results[0].deaths,
        "samples_lost": _samples_lost(options, table, n_train),
        "arrivals": " ".join(map(str, results[0].arrivals)),
        "options": options.recorded(),
        "transport": options.kind.carrier or find_launcher().transport,
        "bytes": options.kind.bytes_are,
        "remark": _where(options),
        "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "machine": files.machine(),
        "git_commit": files.git_commit(),
    }
    model = {} if results[0].saved_model is None or options.save is None else {options.save: results[0].saved_model}
    try:
        paths = files.write_run(options.results_dir, options.run_name, events, table, metadata, model)
    except OSError as error:
        where = error.filename or options.results_dir
        raise RunFailed(f"cannot write {where}: {error.strerror}; nothing was written") from error
    if not quiet:
        world = {"strategy": options.strategy, "n_gpus": options.n_gpus, "device": options.device}
        print(tables.summary(table, world | {"dataset": options.dataset, "model": options.model}))
        print(f"records        {paths['table'].with_suffix('')}.{{csv,json,events.csv.gz}}")
    if options.replay:
        replay.compare(options.replay, hashes[0], quiet)
    if options.kind.replicas_agree and not identical:
        raise RunFailed(f"the replicas differ at the end, which {options.strategy} must never let happen: {hashes}")
    return table
