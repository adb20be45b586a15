"""Checks that the options have possible values and fit each other and this machine; fills in every default."""

import dataclasses
import os
from datetime import datetime
from pathlib import Path

import torch

from compression.none import NoCodec
from launchers import Launcher, find_launcher
from records.errors import UsageError, nearest
from strategies import STRATEGIES
from strategies.common.builtin import Builtin
from strategies.common.coding import check_codec
from training.names import check_class
from training.optimizers import OPTIMIZERS
from training.options import DTYPES, Options
from training.schedules import SCHEDULES
from workloads.loading import LOADERS

DEVICES = ("auto", "cpu", "cuda")
_MOST_RANKS = 100


def resolve(options: Options, launcher: Launcher | None = None) -> Options:
    """Return the options with every default filled in, fit to this machine. Raises UsageError."""
    launcher = launcher or find_launcher(options.launcher, options.scheduler)
    check_class(type(options.strategy))
    _check_values(options)
    strategy = options.strategy
    name, n_gpus = strategy.name, options.n_gpus
    if not launcher.shared_memory and isinstance(strategy, Builtin):
        raise UsageError(f"{name} starts its processes itself; run it without {launcher.name}")
    if options.link and isinstance(strategy, Builtin):
        raise UsageError(f"--bandwidth, --latency: torch itself carries the messages of {name}; leave them out")
    _check_codec(options)
    device = _device(options)
    if n_gpus is None:
        n_gpus = launcher.world_size or _default_n_gpus(options, device)
    elif launcher.world_size not in (None, n_gpus):
        raise UsageError(
            f"--n_gpus {n_gpus}: {launcher.name} started {launcher.world_size} processes; leave --n_gpus out"
        )
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
    run_name = f"{name}-{n_gpus}-{options.dataset}-{options.model}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    return dataclasses.replace(
        options, n_gpus=n_gpus, device=device,
        run_name=options.run_name or run_name.replace(":", ".").replace("/", ".")[:200],
    )  # fmt: skip


def _check_codec(options: Options) -> None:
    strategy, codec = options.strategy, options.codec
    if isinstance(codec, NoCodec):
        if options.codec_scope != Options().codec_scope:
            raise UsageError(f"--codec_scope {options.codec_scope}: there is no codec; give --codec too")
        return
    able = [name for name, one in STRATEGIES.items() if codec.kind in one.traits.carries]
    optimizer = options.make_optimizer()([torch.nn.Parameter(torch.zeros(1))])
    check_codec(codec, strategy.traits.carries, strategy.name, able, options.codec_scope, optimizer)


def _default_n_gpus(options: Options, device: str) -> int:
    least, most = options.strategy.traits.ranks
    return min(most or _MOST_RANKS, max(2, least, torch.cuda.device_count() if device == "cuda" else 0))


def _device(options: Options) -> str:
    if options.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here; use --device cpu, or a torch built for CUDA")
    return options.device


def _check_restarts(options: Options, launcher: Launcher) -> None:
    if not options.restarts:
        return
    able = [name for name, one in STRATEGIES.items() if one.traits.workers_may_return]
    if not options.strategy.traits.workers_may_return:
        raise UsageError(
            f"--restarts {options.restarts}: --strategy {options.strategy.name} lets no worker in again; "
            f"{', '.join(able)} do"
        )
    if not launcher.restarts:
        raise UsageError(f"--restarts: only with the local launcher; run it without {launcher.name}")


def _check_loader(options: Options, launcher: Launcher) -> None:
    default = Options()
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


def _check_values(options: Options) -> None:
    """Check each option of the run by itself; those of the strategy are checked by the strategy."""
    for _, name, text in options.all_fields():
        if isinstance(text, str) and not _possible_in_a_path(text):
            raise UsageError(f"--{name} {text!r}: has characters that no file name can have")
        if isinstance(text, str) and any(len(os.fsencode(part)) > 255 for part in Path(text).parts):
            raise UsageError(f"--{name} {text[:40]!r}...: has a name of more than 255 bytes, which no file can have")
    for name in ("resume", "replay", "checkpoint_dir"):
        if getattr(options, name) == "":
            raise UsageError(f"--{name}: is empty; give a path, or leave it out")
    for option, value, known in (
        ("optimizer", options.optimizer, list(OPTIMIZERS)),
        ("lr_schedule", options.lr_schedule, list(SCHEDULES)),
        ("device", options.device, list(DEVICES)),
        ("dtype", options.dtype, list(DTYPES)),
        ("codec_scope", options.codec_scope, ["tensor", "vector"]),
        ("loader", options.loader, list(LOADERS)),
    ):
        if value not in known:
            raise UsageError(f"--{option} {value}: unknown; {nearest(value, known)}there are {', '.join(known)}")
    for option, number, least in (
        ("n_gpus", options.n_gpus, 1),
        ("batch_size", options.batch_size, 1),
        ("global_batch_size", options.global_batch_size, 1),
        ("epochs", options.epochs, 1),
        ("accumulate", options.accumulate, 1),
        ("train_size", options.train_size, 0),
        ("image_size", options.image_size, 1),
        ("loader_workers", options.loader_workers, 0),
        ("restarts", options.restarts, 0),
        ("checkpoint_every", options.checkpoint_every, 0),
        ("checkpoint_keep", options.checkpoint_keep, 1),
        ("seed", options.seed, 0),
    ):
        if number is not None and number < least:
            raise UsageError(f"--{option} {number}: must be at least {least}")
    if options.seed >= 2**63:
        raise UsageError(f"--seed {options.seed}: must be less than 2**63")
    if not 0 < options.lr <= 1e30:  # more than a float32 holds, torch refuses
        raise UsageError(f"--lr {options.lr}: must be a positive number, such as 0.1")
    if not 0 <= options.momentum < 1:
        raise UsageError(f"--momentum {options.momentum}: must be at least 0 and less than 1")
    if options.evaluator and not options.checkpoint_every:
        raise UsageError("--evaluator: needs checkpoints to score; give --checkpoint_every STEPS too")
    for option, amount in (("weight_decay", options.weight_decay), ("clip_norm", options.clip_norm)):
        if not 0 <= amount <= 1e30:
            raise UsageError(f"--{option} {amount}: must be 0 or a positive number")
    if not 0 <= options.warmup <= options.epochs:
        raise UsageError(f"--warmup {options.warmup}: must be from 0 to the number of epochs, {options.epochs}")
    if not 0 <= options.jitter <= 5:
        raise UsageError(f"--jitter {options.jitter}: must be from 0 to 5")
    if not 1 <= options.timeout <= 1e6:
        raise UsageError(f"--timeout {options.timeout}: must be from 1 to 1000000 seconds")
    for option, path in (("run_name", options.run_name), ("save", options.save)):
        if path is not None and not 0 < len(os.fsencode(Path(path).name)) <= 200:
            raise UsageError(f"--{option} {path[:40]!r}: must be a file name of 1 to 200 bytes")
    if options.run_name is not None and (Path(options.run_name).name != options.run_name or options.run_name == ".."):
        raise UsageError(f"--run_name {options.run_name!r}: must be a file name without folders; see --results_dir")


def _possible_in_a_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
