"""Checkpoints: all that a run needs to go on, in one folder a step, there whole or not at all.

    DIR/step-00000100/run.json       options, step, roles, which ranks have a file, an id of this checkpoint
    DIR/step-00000100/rank-0.pt      that rank's strategy, position and random state

Every rank that has a state writes its file into a hidden folder; when all are there, rank 0 gives it its name. The
files hold tensors and plain values only: loading one executes no code from it.
"""

import fcntl
import io
import json
import os
import pickle
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from records.errors import UsageError, one_line
from training.options import Options
from training.recorded import options_from
from transports.base import Transport

SCORES = "evaluation.csv"  # beside the checkpoints: what evaluate.py makes of them
FORMAT = 1
_PREFIX = "step-"
_KEYS = {"id": str, "options": dict, "step": int, "epoch": int, "n_ranks": int, "roles": list, "ranks": list}
_LOCK = ".training"
_LOCK_PATIENCE_S = 1.0

FIXED = (
    *("strategy", "n_gpus", "batch_size", "global_batch_size", "workers_like", "accumulate", "dataset", "train_size"),
    *("backup_workers", "model", "dtype", "optimizer", "optimizer_options", "lr", "momentum", "weight_decay", "seed"),
)
"""The options that a resumed run must share with its checkpoint; those of the optimizer are in its state."""


# Who writes


@contextmanager
def in_training(directory: Path) -> Iterator[None]:
    """Let others know, by a lock that the system drops with this process, that a run is writing to `directory`.

    What a killed run left half-written there is removed. Raises UsageError if another run is writing there.
    """
    with locked(directory / _LOCK, f"--checkpoint_dir {directory}: another run is writing there; take another"):
        _remove_unfinished(directory)
        try:
            yield
        finally:
            _remove_unfinished(directory)


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock on the file at `path`; raise UsageError with `refusal` if another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        give_up = time.monotonic() + _LOCK_PATIENCE_S
        # Tried for a while, since `is_training` takes the lock for a moment in order to look.
        while not _take(file, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise UsageError(refusal)
            time.sleep(0.02)
        yield


def is_training(directory: Path) -> bool:
    """Return whether a run is writing to `directory`; when its launcher has died, however it did, none is."""
    try:
        with open(directory / _LOCK) as file:
            return not _take(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _take(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_unfinished(directory: Path) -> None:
    for path in directory.glob(f".{_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


# Which there are


def listed(directory: str | Path) -> list[Path]:
    """Return the whole checkpoints in `directory`, oldest first."""
    steps = {}
    for path in Path(directory).glob(f"{_PREFIX}*"):
        found = re.fullmatch(r"\d{8,18}", path.name.removeprefix(_PREFIX))
        if found and path.name == _name(int(found[0])) and (path / "run.json").is_file():
            steps[path] = int(found[0])
    return sorted(steps, key=lambda path: steps[path])


def latest(path: str | Path) -> Path:
    """Return the checkpoint at `path`, or the newest in the folder `path`. Raises UsageError."""
    if (Path(path) / "run.json").is_file():
        return Path(path)
    found = listed(path)
    if not found:
        raise UsageError(f"--resume {path}: no checkpoint there; give a folder that --checkpoint_dir named")
    return found[-1]


def _name(step: int) -> str:
    return f"{_PREFIX}{step:08d}"


# Reading


def check(options: Options, n_parameters: int) -> None:
    """Check that the run, of a model so large, can go on from its checkpoint with these options. Raises UsageError."""
    checkpoint = latest(options.resume or "")
    with naming_resume():
        run, made_with = load_run(checkpoint), load_options(checkpoint)
    for name in FIXED:
        if made_with.get(name) != getattr(options, name):
            raise UsageError(
                f"--{name} {getattr(options, name)}: {checkpoint} was made with {made_with.get(name)}, which a run "
                "that goes on from it cannot change"
            )
    if run["epoch"] > options.epochs:
        raise UsageError(f"--epochs {options.epochs}: {checkpoint} is of epoch {run['epoch']}; give at least as many")
    if (
        options.run_name == made_with.get("run_name")
        and (Path(options.results_dir) / f"{options.run_name}.json").exists()
    ):
        raise UsageError(
            f"--run_name {options.run_name}: has ended, and its records are there; give another --run_name"
        )
    with naming_resume():
        for rank in run["ranks"]:
            state = load_rank(checkpoint, rank)
            x = state["strategy"].get("x") if isinstance(state["strategy"], dict) else None
            if not isinstance(x, torch.Tensor) or x.shape != (n_parameters,):
                raise UsageError(
                    f"{checkpoint}: rank-{rank}.pt does not hold the {n_parameters} parameters of the model"
                )
            if not isinstance(state["position"], dict) or state["position"].get("step") != run["step"]:
                raise UsageError(f"{checkpoint}: rank-{rank}.pt is of another step")


@contextmanager
def naming_resume() -> Iterator[None]:
    """Let errors of the block name the option that a checkpoint was given by."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"--resume {error}") from error


def check_folder(options: Options) -> None:
    """Check that what is in the folder of the run's checkpoints is of this run, and older. Raises UsageError."""
    folder = options.checkpoint_folder
    found = listed(folder)
    if options.resume:
        checkpoint = latest(options.resume)
        step = load_run(checkpoint)["step"]
        if found and checkpoint.resolve().parent == folder.resolve():
            if load_run(found[-1])["step"] > step:
                raise UsageError(
                    f"--resume {checkpoint}: there are later ones, up to {found[-1].name}, that the run would write "
                    "again; delete them, or give another --checkpoint_dir"
                )
            return
    if found or (folder / SCORES).exists():
        name = found[-1].name if found else SCORES
        cure = f", or go on with that run by --resume {folder}" if found else ", or delete it"
        raise UsageError(f"--checkpoint_dir {folder}: holds {name} of another run; give another folder{cure}")


def load_run(checkpoint: Path) -> dict[str, Any]:
    """Return what run.json holds: id, options, step, n_ranks, roles, ranks. Raises UsageError."""
    try:
        run = json.loads((checkpoint / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{checkpoint}: run.json cannot be read ({one_line(error)})") from error
    if (
        not isinstance(run, dict)
        or run.get("format") != FORMAT
        or not all(isinstance(run.get(key), kind) for key, kind in _KEYS.items())
        or len(run["roles"]) != run["n_ranks"]
        or 0 not in run["ranks"]
        or not all(rank in range(run["n_ranks"]) for rank in run["ranks"])
        or (checkpoint.name.startswith(_PREFIX) and checkpoint.name != _name(run["step"]))
    ):
        raise UsageError(f"{checkpoint}: run.json is not that of a checkpoint of this program")
    return run


def load_options(checkpoint: Path) -> dict[str, Any]:
    """Return the options that a checkpoint was made with, those that there are. Raises UsageError."""
    return options_from(load_run(checkpoint)["options"], checkpoint / "run.json")


def load_rank(checkpoint: Path, rank: int) -> dict[str, Any]:
    """Return the state of one rank. Raises UsageError."""
    try:
        state = torch.load(checkpoint / f"rank-{rank}.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        # The first sentence: torch goes on to say how to load it all the same, which would execute its code.
        reason = one_line(error).split(". ")[0]
        raise UsageError(f"{checkpoint}: rank-{rank}.pt is damaged or foreign ({reason})") from error
    if not isinstance(state, dict) or not {"strategy", "position", "random"} <= set(state):
        raise UsageError(f"{checkpoint}: rank-{rank}.pt is not a rank's state")
    return state


# Writing


def save(
    transport: Transport, options: Options, step: int, state: dict[str, Any], ranks: Sequence[int] | None = None
) -> None:
    """Write this rank's `state` after `step` steps; rank 0 makes the checkpoint whole.

    `ranks` (by default all) are those whose states make the checkpoint, 0 among them; they all call it, the others
    need not. Raises OSError, PeerLost, WaitTimeout.
    """
    ranks = sorted(range(transport.world_size) if ranks is None else ranks)
    if transport.rank not in ranks:
        return
    directory = options.checkpoint_folder
    hidden = directory / f".{_name(step)}"
    hidden.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()  # to a file, torch.save turns a full disk into an error that says nothing of it
    torch.save(state, content)
    _write(hidden / f"rank-{transport.rank}.pt", content.getbuffer())
    if transport.rank != 0:
        transport.isend(step, 0, "checkpoint")
        return
    for peer in ranks[1:]:
        transport.recv(peer, "checkpoint")
    run = {"format": FORMAT, "id": uuid.uuid4().hex, "options": options.recorded(), "step": step,
           "epoch": transport.recorder.epoch,
           "n_ranks": transport.world_size, "roles": options.roles, "ranks": ranks}  # fmt: skip
    _write(hidden / "run.json", (json.dumps(run, indent=2) + "\n").encode())
    _remove(directory / _name(step))
    os.replace(hidden, directory / _name(step))
    for old in listed(directory)[: -options.checkpoint_keep]:
        _remove(old)


def _write(path: Path, content: bytes | memoryview) -> None:
    """Write a file, and have it on the disk before its folder gets its name: also a power failure tears nothing."""
    try:
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _remove(path: Path) -> None:
    """Remove a checkpoint: renamed first, so that whoever is about to read it finds it whole, or not at all."""
    gone = path.with_name(f".{path.name}.gone")
    if path.exists():
        os.replace(path, gone)
        shutil.rmtree(gone, ignore_errors=True)
