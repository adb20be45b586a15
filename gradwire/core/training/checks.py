"""From the options that a user gives to a run that can begin: every default filled in, and whatever is wrong found.

`resolve` checks the options by themselves, then with each other and with the launcher; `prepare` the data and the
model, then the strategy and the wings, which need all of these.
"""

import dataclasses
import inspect
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from gradwire.core.launchers import Launcher
from gradwire.core.launchers.local import LAUNCHER
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import UsageError, as_usage_error, one_line, unknown
from gradwire.core.records.options import check_limits
from gradwire.core.records.unfinished import check_name
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.tensors import layout_of
from gradwire.core.strategy.updater import try_step
from gradwire.core.training.optimizers import OPTIMIZERS
from gradwire.core.training.options import BY_NAME, TRAINED, CoreOptions, names_with_strategy_defaults
from gradwire.core.transports.memory import remove_segments
from gradwire.core.workloads import datasets, models, tasks
from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.lookup import from_main

OptionsT = TypeVar("OptionsT", bound=CoreOptions)
_MOST_RANKS = 100


def resolve(options: OptionsT, launcher: Launcher = LAUNCHER) -> OptionsT:
    """Return the options with every default filled in, fit to this machine, before there are data. Raises UsageError.

    Functions and classes of this script or notebook take the places of the names that stand for them.
    """
    given: dict[str, Any] = {
        name: from_main(value) for name in BY_NAME if (value := getattr(options, name)) is not None
    }
    options = dataclasses.replace(options, **given)
    check_class(type(options.strategy), type(options))
    _check_values(options)
    for wing in options.wings:
        options = wing.resolve(options, launcher)
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here; use --device cpu, or a torch built for CUDA")
    if options.amp == "fp16" and device != "cuda":
        raise UsageError("--amp fp16: needs a GPU; take --amp bf16")
    n_gpus = _check_n_gpus(options, launcher, device)
    _check_workers(options, launcher)
    name = f"{options.strategy.name}-{n_gpus}-{options.dataset}-{options.model}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    run_name = options.run_name or re.sub(r"[:/<>()]+", ".", name)[:200]
    return dataclasses.replace(options, n_gpus=n_gpus, device=device, run_name=run_name)


def prepare(options: CoreOptions, launcher: Launcher = LAUNCHER) -> Data:
    """Check resolved options with the data and the model, before any process is started; return the data.

    Raises UsageError.
    """
    if launcher.is_first:
        check_name(options.results_dir, str(options.run_name))
    if options.dtype not in TRAINED:
        raise UsageError(f"--dtype {options.dtype}: of steps that are only timed; to train in it, give --amp bf16")
    data = datasets.load(options, options.seed)
    with torch.random.fork_rng(devices=[]):
        plan = options.plan(data.n_train)
        model, data = _check_model(options, data, plan)
        _check_optimizer(options, model)
    _check_strategy(options, launcher, plan)
    for wing in options.wings:
        wing.check(options, launcher, data, model)
    if launcher.shared_memory:
        _share(data)
    if launcher.is_first:
        check_writable_by("results_dir", options.results_dir)
    return data


# The options by themselves


def check_class(strategy: type[Strategy], options: type[CoreOptions]) -> type[Strategy]:
    """Check that a class defines all that a strategy or codec needs. Raises UsageError."""
    if inspect.isabstract(strategy):
        missing = ", ".join(sorted(strategy.__abstractmethods__))
        raise UsageError(f"--strategy {strategy.name}: has no {missing}; define it")
    if "__dataclass_fields__" not in vars(strategy):
        raise UsageError(f"--strategy {strategy.name}: decorate the class with @dataclass(kw_only=True)")
    for option in dataclasses.fields(strategy):
        if option.name in (*options.names(), "list", "help"):
            raise UsageError(f"--strategy {strategy.name}: its option {option.name} is one of every run; rename it")
        if option.default is option.default_factory is dataclasses.MISSING:
            raise UsageError(f"--strategy {strategy.name}: its option {option.name} has no default; give it one")
    for name in strategy.traits.defaults:
        if name not in (known := names_with_strategy_defaults()):
            raise UsageError(f"--strategy {strategy.name}: may set defaults of {', '.join(known)} only, not of {name}")
    return strategy


def _check_values(options: CoreOptions) -> None:
    """Check the options of the core by themselves; those of the strategy are checked by the strategy."""
    for name in ("data_dir", "results_dir", "run_name"):
        check_path(name, getattr(options, name), is_file=name == "run_name")
    check_limits(options)
    if (run_name := options.run_name) is not None and not Path(run_name).name == run_name != "..":
        raise UsageError(f"--run_name {run_name}: must be a file name without folders; see --results_dir")
    if not 0 <= options.warmup <= options.epochs:
        raise UsageError(f"--warmup {options.warmup}: must be from 0 to the number of epochs, {options.epochs}")
    if options.amp != "none" and options.dtype != "float32":
        raise UsageError(f"--amp {options.amp}: autocast is for float32, not --dtype {options.dtype}; leave one out")
    if options.decay != "all" and not options.weight_decay:
        raise UsageError(f"--decay {options.decay}: there is no decay; give --weight_decay too")
    if ":" not in (optimizer := options.optimizer):
        if optimizer not in OPTIMIZERS:
            raise unknown("--optimizer", optimizer, OPTIMIZERS, "yourmodule:function")
        return
    default = type(options)(**options.chosen, optimizer=optimizer)
    for option in ("lr", "momentum", "weight_decay", "decay", "optimizer_options"):
        if (value := getattr(options, option)) != getattr(default, option):
            raise UsageError(f"--{option} {value}: {optimizer} decides that itself; leave it out")


def check_path(option: str, path: str | None, is_file: bool = False) -> None:
    """Check that a file of this name, if any, could exist. Raises UsageError.

    `is_file`: the run writes it, under a longer name until it is complete.
    """
    if path is None:
        return
    if not path:
        raise UsageError(f"--{option}: is empty; give a path, or leave it out")
    try:
        names = [os.fsencode(part) for part in Path(path).parts]
    except UnicodeEncodeError:
        names = [b"\0"]
    if any(b"\0" in name for name in names):
        raise UsageError(f"--{option} {path!r}: has characters that no file name can have")
    if any(len(name) > 255 for name in names):
        raise UsageError(f"--{option} {path[:40]!r}...: has a name of more than 255 bytes, which no file can have")
    if is_file and not 0 < len(os.fsencode(Path(path).name)) <= 200:
        raise UsageError(f"--{option} {path[:40]!r}: must be a file name of 1 to 200 bytes")


# The ranks, and their launcher


def _check_n_gpus(options: CoreOptions, launcher: Launcher, device: str) -> int:
    """Return how many processes there are. Raises UsageError."""
    strategy, n_gpus = options.strategy, options.n_gpus
    least, most = strategy.traits.ranks
    if n_gpus is None:
        n_gpus = launcher.world_size or default_n_gpus(strategy, device)
    elif launcher.world_size not in (None, n_gpus):
        raise UsageError(
            f"--n_gpus {n_gpus}: {launcher.name} started {launcher.world_size} processes; leave --n_gpus out"
        )
    if most is not None and n_gpus > most:
        own = [f"--{option.name}" for option in dataclasses.fields(strategy)]
        cure = f"; it has {', '.join(own)}" if own else ""
        raise UsageError(f"--n_gpus {n_gpus}: {strategy.name} is at most {most} process(es){cure}")
    if n_gpus < least:
        raise UsageError(f"--n_gpus {n_gpus}: {strategy.name} needs at least {least} processes")
    if n_gpus > _MOST_RANKS and launcher.processes:
        raise UsageError(f"--n_gpus {n_gpus}: one machine, at most {_MOST_RANKS} processes")
    return n_gpus


def default_n_gpus(strategy: Strategy, device: str) -> int:
    """Return how many processes there are by default."""
    least, most = strategy.traits.ranks
    return min(most or _MOST_RANKS, max(2, least, torch.cuda.device_count() if device == "cuda" else 0))


def _check_workers(options: CoreOptions, launcher: Launcher) -> None:
    """Check the options of restarted workers."""
    strategy, restarts = options.strategy, options.restarts
    if restarts and not strategy.traits.workers_may_return:
        table = options.choices()["strategy"].table
        able = [name for name, kind in table.items() if kind.traits.workers_may_return]
        raise UsageError(
            f"--restarts {restarts}: --strategy {strategy.name} lets no worker in again; {', '.join(able)} do"
        )
    if restarts and not launcher.restarts:
        raise UsageError(f"--restarts: only with the local launcher; run it without {launcher.name}")


# The data, the model and the strategy on them


def _check_model(options: CoreOptions, data: Data, plan: BatchPlan) -> tuple[nn.Module, Data]:
    """Return the model, which can train on the smallest piece of a batch; and the data, as the task takes them."""
    name = options.model
    model = models.seeded(name, data, options.seed, options.torch_dtype, options.model_options)
    task = tasks.find(data.task)
    if data.task == tasks.CLASSIFICATION:
        models.check(name, model, data.input_shape, data.n_classes)
    else:
        models.check_layers(name, model)
        data = dataclasses.replace(data, n_per_sample=tasks.check(task, model, name, data, options.torch_dtype))
    start, stop = plan.bounds(plan.n_steps - 1, None if options.world_size == 1 else plan.workers - 1)
    if (stop - start) // min(options.accumulate, stop - start) == 1:  # BatchNorm may need two samples
        with as_usage_error(
            f"--batch_size: the last batch leaves a worker one sample, on which --model {name} cannot train",
            "; change --batch_size, --train_size or --accumulate",
        ):
            task(model.train(), *data.fetch(torch.zeros(1, dtype=torch.int64), dtype=options.torch_dtype))
    return model, data


def _check_optimizer(options: CoreOptions, model: nn.Module) -> None:
    """Check that an optimizer that sees the tensors of the model takes a step with them."""
    try:
        try_step(options.make_optimizer(), layout_of(model), options.torch_dtype)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"--optimizer {options.optimizer}: takes no step with the parameters of --model {options.model} "
            f"({one_line(error)}); change its options, or take another"
        ) from error


def _check_strategy(options: CoreOptions, launcher: Launcher, plan: BatchPlan) -> None:
    """Check the options of the strategy against the size of the run."""
    roles = options.roles
    bounds = [plan.bounds(plan.n_steps - 1, worker) for worker in range(plan.workers)]
    size = RunSize(
        len(roles), roles.count("worker"), plan.n_steps, launcher.shared_memory, replayed=options.is_replay,
        held_back=options.link is not None, optimizer=options.make_optimizer(), accumulate=options.accumulate,
        last_parts=tuple(stop - start for start, stop in bounds),
    )  # fmt: skip
    check_strategy(options.strategy, size)


def _share(data: Data) -> None:
    """Put the data where all ranks can read it."""
    cure = "; make locks and open files in __getitem__"
    with as_usage_error(f"--dataset {data.name}: cannot be given to other processes", cure):
        try:
            data.train.share_memory_()
            data.test.share_memory_()
            return
        except RuntimeError:
            remove_segments(os.getpid())
    raise UsageError(
        f"--dataset {data.name}: no shared memory left for it (see df /dev/shm; in Docker, --shm-size 2g); "
        "take a smaller --train_size"
    )
