"""Checks that the options have possible values and fit each other and this machine; fills in every default."""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import torch

from gradwire.core.launchers import Launcher, find_launcher
from gradwire.core.records.errors import UsageError, one_of, unknown
from gradwire.core.records.options import check_limits
from gradwire.core.strategy.base import Strategy
from gradwire.core.training.optimizers import DECAYS, OPTIMIZERS, SCHEDULES
from gradwire.core.training.options import BY_NAME, DTYPES, CoreOptions, names_with_strategy_defaults
from gradwire.core.training.passes import AMP
from gradwire.core.workloads.loading import LOADERS
from gradwire.core.workloads.lookup import from_main
from gradwire.core.workloads.options import DataOptions

OptionsT = TypeVar("OptionsT", bound=CoreOptions)
_MOST_RANKS = 100
_MOST = 1e30  # more than a float32 holds, torch refuses


def resolve(options: OptionsT, launcher: Launcher | None = None) -> OptionsT:
    """Return the options with every default filled in, fit to this machine. Raises UsageError."""
    launcher = launcher or find_launcher(options.launcher, options.scheduler)
    options = _with_objects(options)
    check_class(type(options.strategy), type(options))
    _check_values(options)
    for wing in options.wings:
        options = wing.resolve(options, launcher)
    strategy = options.strategy
    name, n_gpus = strategy.name, options.n_gpus
    device = _device(options.device)
    if n_gpus is None:
        n_gpus = launcher.world_size or default_n_gpus(options, device)
    elif launcher.world_size not in (None, n_gpus):
        raise UsageError(
            f"--n_gpus {n_gpus}: {launcher.name} started {launcher.world_size} processes; leave --n_gpus out"
        )
    options = dataclasses.replace(options, n_gpus=n_gpus)
    least, most = strategy.traits.ranks
    if most is not None and n_gpus > most:
        own = [f"--{option.name}" for option in dataclasses.fields(strategy)]
        cure = f"; it has {', '.join(own)}" if own else ""
        raise UsageError(f"--n_gpus {n_gpus}: {name} is at most {most} process(es){cure}")
    if n_gpus < least:
        raise UsageError(f"--n_gpus {n_gpus}: {name} needs at least {least} processes")
    if n_gpus > _MOST_RANKS and launcher.processes:
        raise UsageError(f"--n_gpus {n_gpus}: one machine, at most {_MOST_RANKS} processes")
    _check_stragglers(options, strategy.roles(n_gpus))
    _check_restarts(options, launcher)
    _check_loader(options, launcher)
    _check_amp(options, device)
    run_name = f"{name}-{n_gpus}-{options.dataset}-{options.model}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    return dataclasses.replace(
        options, device=device,
        run_name=options.run_name or re.sub(r"[:/<>()]+", ".", run_name)[:200],
    )  # fmt: skip


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
        if name not in names_with_strategy_defaults():
            known = ", ".join(names_with_strategy_defaults())
            raise UsageError(f"--strategy {strategy.name}: may set defaults of {known} only, not of {name}")
    return strategy


def _with_objects(options: OptionsT) -> OptionsT:
    """Return the options with the objects of this script or notebook that they name. Raises UsageError."""
    given: dict[str, Any] = {
        name: from_main(value) for name in BY_NAME if (value := getattr(options, name)) is not None
    }
    return dataclasses.replace(options, **given)


def default_n_gpus(options: CoreOptions, device: str) -> int:
    """Return how many processes there are by default. Raises UsageError."""
    least, most = options.strategy.traits.ranks
    return min(most or _MOST_RANKS, max(2, least, torch.cuda.device_count() if device == "cuda" else 0))


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here; use --device cpu, or a torch built for CUDA")
    return device


def _check_amp(options: CoreOptions, device: str) -> None:
    if options.amp != "none" and options.dtype != "float32":
        raise UsageError(f"--amp {options.amp}: autocast is for float32, not --dtype {options.dtype}; leave one out")
    if options.amp == "fp16" and device != "cuda":
        raise UsageError("--amp fp16: needs a GPU; take --amp bf16")


def _check_restarts(options: CoreOptions, launcher: Launcher) -> None:
    strategy, restarts = options.strategy, options.restarts
    if restarts and not strategy.traits.workers_may_return:
        table = options.choices()["strategy"].table
        able = [name for name, kind in table.items() if kind.traits.workers_may_return]
        raise UsageError(
            f"--restarts {restarts}: --strategy {strategy.name} lets no worker in again; {', '.join(able)} do"
        )
    if restarts and not launcher.restarts:
        raise UsageError(f"--restarts: only with the local launcher; run it without {launcher.name}")


def _check_loader(options: DataOptions, launcher: Launcher) -> None:
    default = DataOptions()
    for name in ("loader", "loader_workers"):
        if not launcher.processes and getattr(options, name) != getattr(default, name):
            raise UsageError(
                f"--{name} {getattr(options, name)}: in {launcher.name} all ranks share a process, which decodes for "
                "them; leave it out"
            )


def _check_stragglers(options: CoreOptions, roles: list[str]) -> None:
    for rank in options.slowdowns:
        if not (rank < len(roles) and roles[rank] == "worker"):
            workers = ", ".join(str(rank) for rank, role in enumerate(roles) if role == "worker")
            raise UsageError(f"--slow {rank}: not a rank that computes; those are {workers}")


_WORDS: dict[str, Iterable[str]] = {
    "decay": DECAYS, "lr_schedule": SCHEDULES, "device": ("auto", "cpu", "cuda"), "dtype": DTYPES, "amp": AMP,
    "loader": LOADERS,
}  # fmt: skip
_MUST_BE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda seed: seed < 2**63, "less than 2**63"),
    "lr": (lambda lr: 0 < lr <= _MOST, "a positive number, such as 0.1"),
    "momentum": (lambda momentum: 0 <= momentum < 1, "at least 0 and less than 1"),
    "weight_decay": (lambda decay: 0 <= decay <= _MOST, "0 or a positive number"),
    "clip_norm": (lambda norm: 0 <= norm <= _MOST, "0 or a positive number"),
    "jitter": (lambda jitter: 0 <= jitter <= 5, "from 0 to 5"),
    "timeout": (lambda seconds: 1 <= seconds <= 1e6, "from 1 to 1000000 seconds"),
    "run_name": (
        lambda name: name is None or Path(name).name == name != "..",
        "a file name without folders; see --results_dir",
    ),
}


def _check_values(options: CoreOptions) -> None:
    """Check each option of the run by itself; those of the strategy are checked by the strategy."""
    for name in ("data_dir", "results_dir", "run_name"):
        check_path(name, getattr(options, name), is_file=name == "run_name")
    for name, known in _WORDS.items():
        one_of(options, name, known)
    check_limits(options)
    for name, (holds, what) in _MUST_BE.items():
        if not holds(value := getattr(options, name)):
            raise UsageError(f"--{name} {value}: must be {what}")
    if not 0 <= options.warmup <= options.epochs:
        raise UsageError(f"--warmup {options.warmup}: must be from 0 to the number of epochs, {options.epochs}")
    _check_optimizer(options)


def _check_optimizer(options: CoreOptions) -> None:
    name = options.optimizer
    if name not in OPTIMIZERS and ":" not in name:
        raise unknown("--optimizer", name, OPTIMIZERS, "yourmodule:function")
    default = type(options)(**options.chosen, optimizer=name)
    for option in ("lr", "momentum", "weight_decay", "decay", "optimizer_options"):
        if ":" in name and (value := getattr(options, option)) != getattr(default, option):
            raise UsageError(f"--{option} {value}: {name} decides that itself; leave it out")
    if options.decay != "all" and not options.weight_decay:
        raise UsageError(f"--decay {options.decay}: there is no decay; give --weight_decay too")


def check_path(option: str, path: str | None, is_file: bool = False) -> None:
    """Check that there may be a file of this name, where one is given. Raises UsageError.

    `is_file`: it is one that is written, whose name is longer until it is complete.
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
