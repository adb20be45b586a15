"""Checks that the options have possible values and fit each other and this machine; fills in every default."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from gradwire.baselines.builtin import Builtin
from gradwire.compression.coding import check_codec
from gradwire.compression.none import NoCodec
from gradwire.core.launchers import Launcher, find_launcher
from gradwire.core.records.errors import UsageError, between, one_of, unknown
from gradwire.core.strategy.base import Strategy
from gradwire.core.training.names import check_class
from gradwire.core.training.optimizers import DECAYS, OPTIMIZERS, SCHEDULES
from gradwire.core.training.options import BY_NAME, DTYPES, Options
from gradwire.core.training.passes import AMP
from gradwire.core.workloads.loading import LOADERS
from gradwire.core.workloads.lookup import UserObject, from_main
from gradwire.core.workloads.options import DataOptions
from gradwire.strategies import STRATEGIES

_MOST_RANKS = 100
_MOST = 1e30  # more than a float32 holds, torch refuses


def resolve(options: Options, launcher: Launcher | None = None) -> Options:
    """Return the options with every default filled in, fit to this machine. Raises UsageError."""
    launcher = launcher or find_launcher(options.launcher, options.scheduler)
    options = _with_objects(options)
    check_class(type(options.strategy))
    _check_values(options)
    strategy = options.strategy
    name, n_gpus = strategy.name, options.n_gpus
    if not launcher.shared_memory and isinstance(strategy, Builtin):
        raise UsageError(f"{name} starts its processes itself; run it without {launcher.name}")
    if options.link and isinstance(strategy, Builtin):
        raise UsageError(f"--bandwidth, --latency: torch itself carries the messages of {name}; leave them out")
    if not isinstance(options.codec, NoCodec):
        check_codec(options.codec, strategy, options.codec_scope, options.make_optimizer())
    elif options.codec_scope != Options().codec_scope:
        raise UsageError(f"--codec_scope {options.codec_scope}: there is no codec; give --codec too")
    device = _device(options.device)
    if options.network and launcher.processes and not strategy.traits.plans_for_network:
        able = [name for name, one in STRATEGIES.items() if one.traits.plans_for_network]
        raise UsageError(f"--network: {name} does not plan for it; take --strategy {', '.join(able)}, or simulate.py")
    if n_gpus is None:
        n_gpus = launcher.world_size or default_n_gpus(options, device)
    elif launcher.world_size not in (None, n_gpus):
        raise UsageError(
            f"--n_gpus {n_gpus}: {launcher.name} started {launcher.world_size} processes; leave --n_gpus out"
        )
    options = dataclasses.replace(options, n_gpus=n_gpus)
    check_network(options)
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
    _check_restarts(options.restarts, strategy, launcher)
    _check_loader(options, launcher)
    _check_amp(options, device)
    run_name = f"{name}-{n_gpus}-{options.dataset}-{options.model}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    return dataclasses.replace(
        options, device=device,
        run_name=options.run_name or re.sub(r"[:/<>()]+", ".", run_name)[:200],
    )  # fmt: skip


def _with_objects(options: Options) -> Options:
    """Return the options with the objects of this script or notebook that they name. Raises UsageError."""
    given: dict[str, Any] = {
        name: from_main(value) for name in BY_NAME if (value := getattr(options, name)) is not None
    }
    for name in ("dataset", "model", "task"):
        if options.evaluator and isinstance(value := given.get(name), UserObject) and not value.is_importable:
            raise UsageError(f"--evaluator: its process cannot import --{name} {value}; define it in a module")
    return dataclasses.replace(options, **given)


def check_network(options: Options) -> None:
    """Check that --network is of as many ranks as there are. Raises UsageError."""
    if (graph := options.graph) and graph.ranks != options.n_gpus:
        raise UsageError(
            f"--n_gpus {options.n_gpus}: --network {options.network} has {graph.ranks} ranks; give as many"
        )


def default_n_gpus(options: Options, device: str) -> int:
    """Return how many processes there are by default. Raises UsageError."""
    if graph := options.graph:
        return graph.ranks
    strategy = options.strategy
    least, most = strategy.traits.ranks
    return min(most or _MOST_RANKS, max(2, least, torch.cuda.device_count() if device == "cuda" else 0))


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here; use --device cpu, or a torch built for CUDA")
    return device


def _check_amp(options: Options, device: str) -> None:
    if options.amp != "none" and options.dtype != "float32":
        raise UsageError(f"--amp {options.amp}: autocast is for float32, not --dtype {options.dtype}; leave one out")
    if options.amp == "fp16" and device != "cuda":
        raise UsageError("--amp fp16: needs a GPU; take --amp bf16")


def _check_restarts(restarts: int, strategy: Strategy, launcher: Launcher) -> None:
    if restarts and not strategy.traits.workers_may_return:
        able = [name for name, one in STRATEGIES.items() if one.traits.workers_may_return]
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


def _check_stragglers(options: Options, roles: list[str]) -> None:
    if not (options.slow or options.jitter):
        return
    if isinstance(options.strategy, Builtin) and options.strategy.single_process:
        option = "slow" if options.slow else "jitter"
        raise UsageError(f"--{option}: {options.strategy.name} is one process, in which no worker can be slow alone")
    for rank in options.slowdowns:
        if not (rank < len(roles) and roles[rank] == "worker"):
            workers = ", ".join(str(rank) for rank, role in enumerate(roles) if role == "worker")
            raise UsageError(f"--slow {rank}: not a rank that computes; those are {workers}")


_WORDS: dict[str, Iterable[str]] = {
    "decay": DECAYS, "lr_schedule": SCHEDULES, "device": ("auto", "cpu", "cuda"), "dtype": DTYPES, "amp": AMP,
    "codec_scope": ("tensor", "vector"), "loader": LOADERS,
}  # fmt: skip
_LEAST = {
    "n_gpus": 1, "batch_size": 1, "global_batch_size": 1, "epochs": 1, "accumulate": 1, "train_size": 0,
    "image_size": 1, "context": 1, "loader_workers": 0, "restarts": 0, "checkpoint_every": 0, "checkpoint_keep": 1,
    "seed": 0,
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
_PATHS = ("data_dir", "results_dir", "run_name", "save", "resume", "replay", "checkpoint_dir", "tensorboard")
_NAMES = ("run_name", "save")  # of files, whose names are longer until they are complete


def _check_values(options: Options) -> None:
    """Check each option of the run by itself; those of the strategy are checked by the strategy."""
    for name in _PATHS:
        _check_path(name, getattr(options, name))
    for name, known in _WORDS.items():
        one_of(options, name, known)
    for name, least in _LEAST.items():
        if getattr(options, name) is not None:
            between(options, name, least)
    for name, (holds, what) in _MUST_BE.items():
        if not holds(value := getattr(options, name)):
            raise UsageError(f"--{name} {value}: must be {what}")
    if not 0 <= options.warmup <= options.epochs:
        raise UsageError(f"--warmup {options.warmup}: must be from 0 to the number of epochs, {options.epochs}")
    _check_optimizer(options)
    if options.evaluator and not options.checkpoint_every:
        raise UsageError("--evaluator: needs checkpoints to score; give --checkpoint_every STEPS too")


def _check_optimizer(options: Options) -> None:
    name = options.optimizer
    if name not in OPTIMIZERS and ":" not in name:
        raise unknown("--optimizer", name, OPTIMIZERS, "yourmodule:function")
    default = Options(strategy=options.strategy, codec=options.codec, optimizer=name)
    for option in ("lr", "momentum", "weight_decay", "decay", "optimizer_options"):
        if ":" in name and (value := getattr(options, option)) != getattr(default, option):
            raise UsageError(f"--{option} {value}: {name} decides that itself; leave it out")
    if options.decay != "all" and not options.weight_decay:
        raise UsageError(f"--decay {options.decay}: there is no decay; give --weight_decay too")


def _check_path(option: str, path: str | None) -> None:
    """Check that there may be a file of this name, where one is given. Raises UsageError."""
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
    if option in _NAMES and not 0 < len(os.fsencode(Path(path).name)) <= 200:
        raise UsageError(f"--{option} {path[:40]!r}: must be a file name of 1 to 200 bytes")
