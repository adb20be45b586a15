"""Whether each option by itself has a value that can be."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from records.errors import UsageError
from strategies import STRATEGIES
from training.optimizers import OPTIMIZERS
from training.schedules import SCHEDULES

if TYPE_CHECKING:
    from training.options import Options

DEVICES = ("auto", "cpu", "cuda")
READS = ("consistent", "inconsistent")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def check_values(options: "Options", names: Iterable[str]) -> None:
    """Check the values of the options, which have these names. Raises UsageError."""
    for name in names:
        text = getattr(options, name)
        if isinstance(text, str) and not _possible_in_a_path(text):
            raise UsageError(f"--{name} {text!r}: has characters that no file name can have")
    for name in ("resume", "replay", "checkpoint_dir"):
        if getattr(options, name) == "":
            raise UsageError(f"--{name}: is empty; give a path, or leave it out")
    for option, value, known in (
        ("strategy", options.strategy, [options.builtin.name] if options.builtin else list(STRATEGIES)),
        ("optimizer", options.optimizer, list(OPTIMIZERS)),
        ("lr_schedule", options.lr_schedule, SCHEDULES),
        ("reads", options.reads, READS),
        ("device", options.device, DEVICES),
        ("dtype", options.dtype, list(DTYPES)),
    ):
        if value not in known:
            near = difflib.get_close_matches(value, known, 1, 0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"--{option} {value}: unknown; {hint}There are {', '.join(known)}")
    for option, number, least in (
        ("n_gpus", options.n_gpus, 1),
        ("batch_size", options.batch_size, 1),
        ("global_batch_size", options.global_batch_size, 1),
        ("workers_like", options.workers_like, 1),
        ("epochs", options.epochs, 1),
        ("accumulate", options.accumulate, 1),
        ("train_size", options.train_size, 0),
        ("backup_workers", options.backup_workers, 0),
        ("max_staleness", options.max_staleness, 0),
        ("aggregate", options.aggregate, 1),
        ("n_push", options.n_push, 1),
        ("n_pull", options.n_pull, 1),
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
    if options.workers_like > 1 and options.strategy != "single":
        raise UsageError(f"--workers_like {options.workers_like}: only for --strategy single")
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
