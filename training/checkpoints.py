"""Checkpoints: all that a run needs to go on, in one folder a step, there whole or not at all.

    DIR/step-00000100/run.json       options, step
    DIR/step-00000100/rank-0.pt      that rank's strategy, position and random state

Every rank writes its own file into a hidden folder; when all are there, rank 0 gives it its name. The files hold
tensors and plain values only: loading one executes no code from it.
"""

import fcntl
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from training.options import Options
from transports.base import Transport
from workloads.errors import UsageError, one_line

_PREFIX = "step-"
_KEYS = ("options", "step", "n_ranks", "roles")
_LOCK = ".training"
FORMAT = 1


@contextmanager
def in_training(directory: Path) -> Iterator[None]:
    """Let others know, by a lock that the system drops with this process, that a run is writing to `directory`.

    Raises UsageError if another one is.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / _LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--checkpoint_dir {directory}: another run is writing there; take another") from None
        yield


def has_begun(directory: Path) -> bool:
    """Return whether a run has ever written, or is to write, to `directory`."""
    return (directory / _LOCK).exists()


def has_ended(directory: Path) -> bool:
    """Return whether no run is writing to `directory`, whatever became of the last one."""
    with open(directory / _LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def listed(directory: str | Path) -> list[Path]:
    """Return the whole checkpoints in `directory`, oldest first."""
    found = [path for path in Path(directory).glob(f"{_PREFIX}*") if (path / "run.json").is_file()]
    return sorted(found, key=lambda path: path.name)


def latest(path: str | Path) -> Path:
    """Return the checkpoint at `path`, or the newest in the folder `path`. Raises UsageError."""
    if (Path(path) / "run.json").is_file():
        return Path(path)
    found = listed(path)
    if not found:
        raise UsageError(f"--resume {path}: no checkpoint there; give a folder that --checkpoint_dir named")
    return found[-1]


FIXED = (
    *("strategy", "n_gpus", "batch_size", "global_batch_size", "workers_like", "accumulate", "dataset", "train_size"),
    *("model", "dtype", "optimizer", "seed"),
)
"""The options that a resumed run must share with its checkpoint."""


def check(options: Options) -> None:
    """Check that the run can go on from its checkpoint with these options. Raises UsageError."""
    checkpoint = latest(options.resume or "")
    made_with = load_run(checkpoint)["options"]
    for name in FIXED:
        if made_with.get(name) != getattr(options, name):
            raise UsageError(
                f"--{name} {getattr(options, name)}: {checkpoint} was made with {made_with.get(name)}, which a run "
                "that goes on from it cannot change"
            )
    for rank in load_run(checkpoint)["ranks"]:
        load_rank(checkpoint, rank)


def load_run(checkpoint: Path) -> dict[str, Any]:
    """Return what run.json holds: options, step, n_ranks, roles. Raises UsageError."""
    try:
        run = json.loads((checkpoint / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--resume {checkpoint}: cannot be read ({one_line(error)})") from error
    if not isinstance(run, dict) or run.get("format") != FORMAT or not all(key in run for key in _KEYS):
        raise UsageError(f"--resume {checkpoint}: not a checkpoint of this program")
    return run


def load_rank(checkpoint: Path, rank: int) -> dict[str, Any]:
    """Return the state of one rank. Raises UsageError."""
    try:
        state = torch.load(checkpoint / f"rank-{rank}.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise UsageError(f"--resume {checkpoint}: rank-{rank}.pt is damaged or foreign ({one_line(error)})") from error
    if not isinstance(state, dict) or not {"strategy", "position", "random"} <= set(state):
        raise UsageError(f"--resume {checkpoint}: rank-{rank}.pt is not a rank's state")
    return state


def save(transport: Transport, options: Options, step: int, state: dict[str, Any], ranks: Sequence[int]) -> None:
    """Write this rank's `state` after `step` steps; rank 0 makes the checkpoint whole. All ranks call it.

    Raises OSError, PeerLost, WaitTimeout.
    """
    directory = options.checkpoint_folder
    name = f"{_PREFIX}{step:08d}"
    hidden = directory / f".{name}"
    hidden.mkdir(parents=True, exist_ok=True)
    torch.save(state, hidden / f"rank-{transport.rank}.pt")
    if transport.rank != 0:
        transport.isend(step, 0, "checkpoint")
        return
    for peer in set(ranks) - {0}:
        transport.recv(peer, "checkpoint")
    run = {"format": FORMAT, "options": options.recorded(), "step": step,
           "n_ranks": transport.world_size, "ranks": list(ranks), "roles": options.roles}  # fmt: skip
    (hidden / "run.json").write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(directory / name, ignore_errors=True)
    os.replace(hidden, directory / name)
    for old in listed(directory)[: -options.checkpoint_keep]:
        # Renamed first: whoever is about to read it finds it whole, or not at all.
        gone = old.with_name(f".{old.name}.gone")
        os.replace(old, gone)
        shutil.rmtree(gone, ignore_errors=True)
