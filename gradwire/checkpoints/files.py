"""Checkpoints: all that a run needs to continue, in one folder a step, written atomically.

    DIR/step-00000100/run.json       options, step, roles, an id of this checkpoint, the checksum of each rank's file
    DIR/step-00000100/rank-0.pt      that rank's strategy, position and random state

Every rank that has a state writes its file into a hidden folder, or sends it to rank 0, which writes it, where they may
run on several machines; when all are there, rank 0 gives the folder its name. The files hold tensors and plain values
only: loading one executes no code from it. A file that does not have its checksum is refused.
"""

import hashlib
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradwire.checkpoints.folder import PREFIX, listed, make_folder, name_of, put_in_place, remove
from gradwire.core.records.atomic import naming, sync
from gradwire.core.records.errors import UsageError, as_usage_error, one_line
from gradwire.core.transports.base import Transport

FORMAT = 3


@dataclass(frozen=True)
class Target:
    """Where a run writes its checkpoints, how many it keeps, and what it says of itself in each."""

    folder: Path
    keep: int
    options: Mapping[str, Any]
    roles: Sequence[str]


def save(
    transport: Transport, target: Target, step: int, state: dict[str, Any], ranks: Sequence[int] | None = None
) -> None:
    """Write this rank's `state` after `step` steps; rank 0 makes the checkpoint of all.

    `ranks` (by default all) are those whose states make the checkpoint, 0 among them; they all call it, the others
    need not. Raises OSError, PeerLost, WaitTimeout.
    """
    ranks = sorted(range(transport.world_size) if ranks is None else ranks)
    content = io.BytesIO()  # to a file, torch.save turns a full disk into an error that says nothing of it
    torch.save(state, content)
    if transport.rank != 0 and not transport.same_machine:
        transport.isend(torch.frombuffer(content.getbuffer(), dtype=torch.uint8), 0, "checkpoint")
        return
    hidden = target.folder / f".{name_of(step)}"
    make_folder(target.folder)
    hidden.mkdir(exist_ok=True)
    checksum = _write_rank(hidden, transport.rank, content.getbuffer())
    if transport.rank != 0:
        transport.isend(checksum, 0, "checkpoint")
        return
    checksums = {"0": checksum}
    for peer in ranks[1:]:
        with transport.recv(peer, "checkpoint") as sent:
            checksums[str(peer)] = sent.object or _write_rank(hidden, peer, memoryview(sent.vector.numpy().data))
    run = {"format": FORMAT, "id": uuid.uuid4().hex, "options": dict(target.options), "step": step,
           "epoch": transport.recorder.epoch,
           "n_ranks": transport.world_size, "roles": list(target.roles), "checksums": checksums}  # fmt: skip
    _write(hidden / "run.json", (json.dumps(sealed(run), indent=2) + "\n").encode())
    sync(hidden)
    put_in_place(hidden, target.folder / name_of(step))
    sync(target.folder)
    for old in listed(target.folder)[: -target.keep]:
        remove(old)


def sealed(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of run.json, with a checksum of the rest of it."""
    rest = {key: value for key, value in run.items() if key != "checksum"}
    return rest | {"checksum": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def _write_rank(folder: Path, rank: int, content: memoryview) -> str:
    """Write the file of a rank; return its checksum."""
    _write(folder / f"rank-{rank}.pt", content)
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes | memoryview) -> None:
    """Write a file, and have it on the disk before its folder gets its name: also a power failure tears nothing."""
    with naming(path):
        path.write_bytes(content)
        sync(path)


def load_run(checkpoint: Path) -> dict[str, Any]:
    """Return what run.json holds: id, options, step, n_ranks, roles, checksums; and `ranks`, those that have a file.

    Raises UsageError.
    """
    with as_usage_error(f"{checkpoint}: run.json cannot be read", "", (OSError, ValueError, RecursionError)):
        run = json.loads((checkpoint / "run.json").read_text(encoding="utf-8"))
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise UsageError(f"{checkpoint}: run.json is not of a checkpoint of this program")
    if sealed(run) != run:
        raise UsageError(f"{checkpoint}: run.json is damaged (it does not have its checksum); take another")
    if checkpoint.name.startswith(PREFIX) and checkpoint.name != name_of(run["step"]):
        raise UsageError(f"{checkpoint}: run.json is of another step")
    return run | {"ranks": sorted(map(int, run["checksums"]))}


def load_rank(checkpoint: Path, rank: int) -> dict[str, Any]:
    """Return the state of one rank. Raises UsageError."""
    checksum = load_run(checkpoint)["checksums"].get(str(rank))
    try:
        with open(checkpoint / f"rank-{rank}.pt", "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                raise ValueError("it does not have its checksum")
            file.seek(0)
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is raised by bytes that are no such file
        # The first sentence: torch then says how to load it all the same, which would execute its code.
        reason = one_line(error).split(". ")[0]
        raise UsageError(f"{checkpoint}: rank-{rank}.pt is damaged or foreign ({reason}); take another") from error
    return state
