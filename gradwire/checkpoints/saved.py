"""Checkpoints of one rank, from which a run continues, and the model that is saved when it has ended."""

import platform
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from gradwire.checkpoints import files
from gradwire.checkpoints.model_files import to_bytes
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.strategy.tensors import parameters_from
from gradwire.core.training.progress import REPORTER
from gradwire.core.training.rank import Position, Rank
from gradwire.core.training.watchers import Watcher
from gradwire.core.transports.messages import WaitTimeout
from gradwire.random_state import random_state, set_random_state


@runtime_checkable
class Gathers(Protocol):
    """A strategy whose ranks may gather the state of all on rank 0."""

    @property
    def gathers(self) -> bool:
        """Whether rank 0's `state_dict` has what the others' lack: all ranks call it together."""


class Saved(Watcher):
    """Writes a checkpoint every `every` steps, 0: never, and continues from `resume`, unless it is None."""

    def __init__(self, target: files.Target, every: int, resume: str | None) -> None:
        self._target, self._every, self._resume = target, every, resume

    def begin_run(self, rank: Rank) -> None:
        """Check that the folder is seen from here."""
        folder, transport, traits = self._target.folder, rank.transport, rank.strategy.traits
        if not transport.same_machine and transport.rank == 0 and self._every and not folder.is_dir():
            raise UsageError(f"--checkpoint_dir: {platform.node()}, where rank 0 runs, does not see {folder}")
        serving = [r for r, role in enumerate(self._target.roles) if role == "server"]
        # Ranks that do not keep step never come to the same checkpoint: then few have all of it.
        self._few_have_state = traits.workers_may_die or traits.asynchronous
        self._ranks = (serving or [REPORTER]) if self._few_have_state else list(range(len(self._target.roles)))

    def before_start(self, rank: Rank) -> None:
        """Continue from the checkpoint."""
        rank.state = self._load(rank, Path(self._resume)) if self._resume else None

    def end_step(self, rank: Rank, step: int) -> None:
        """Write a checkpoint if one is due."""
        if self._every and step % self._every == 0:
            self._write(rank, step)

    def _write(self, rank: Rank, step: int) -> None:
        """Write a checkpoint after `step` steps. Raises RunFailed if it cannot be written."""
        transport = rank.transport
        if transport.rank not in self._ranks:
            return
        strategy, at, ranks = rank.strategy, rank.position, self._ranks
        with transport.recorder.evaluating():
            own = strategy.state_dict()
            shown = own.get("x") if self._few_have_state or getattr(strategy, "shards_x", False) else strategy.model()
        position = {"step": step, "epoch": transport.recorder.epoch, "loss_sum": at.loss_sum, "n": at.n}
        state: dict[str, Any] = {
            "strategy": own,
            "model": None,
            "position": position | {"samples": at.samples},
            **random_state(transport.device),
            "precision": rank.precision.scaler.state_dict(),
        }
        if transport.rank == REPORTER and shown is not None:  # the model to score; the same tensor is written once
            state["model"] = own["x"] if torch.equal(shown, own["x"]) else shown.clone()
        if isinstance(strategy, Gathers) and strategy.gathers:
            if transport.rank != REPORTER:
                transport.isend(state, REPORTER, "rest of the checkpoint").wait()
                return
            state["others"] = [transport.recv(peer, "rest of the checkpoint").object for peer in transport.peers]
            ranks = [REPORTER]
        with transport.recorder.evaluating():
            try:
                files.save(transport, self._target, step, state, ranks)
            except WaitTimeout:  # which is an OSError too, and says more of its cause
                raise
            except OSError as error:
                where = error.filename or self._target.folder
                raise RunFailed(f"cannot write the checkpoint {where}: {error.strerror}") from error

    def _load(self, rank: Rank, checkpoint: Path) -> dict[str, Any] | None:
        """Take over this rank's position in the checkpoint; return its strategy's state.

        None if this rank has none. Raises UsageError if its file is damaged.
        """
        transport = rank.transport
        if transport.rejoined or transport.rank not in self._ranks:
            return None
        run = files.load_run(checkpoint)
        if (
            getattr(rank.strategy, "reshards", False)
            and not run["n_ranks"] == len(run["ranks"]) == transport.world_size
        ):
            # There is no file for each rank: rank 0 takes over what all have counted.
            ranks = [files.load_rank(checkpoint, r) for r in run["ranks"]]
            ranks += ranks[0].get("others", [])
            counted, found = [] if transport.rank else ranks, {"ranks": [saved["strategy"] for saved in ranks]}
            own = ranks[transport.rank : transport.rank + 1]  # the others draw from their own seeds
        else:
            counted = own = ranks = [files.load_rank(checkpoint, transport.rank)]
            found = own[0]["strategy"]
        position = ranks[0]["position"]
        loss_sum, n, samples = (  # a checkpoint of before --task has no n
            sum(saved["position"].get(key, saved["position"]["samples"]) for saved in counted)
            for key in ("loss_sum", "n", "samples")
        )
        rank.position = Position(position["step"], position["step"], loss_sum, n, samples, samples)
        transport.recorder.epoch = position["epoch"]
        for state in own:
            set_random_state(state, transport.device)
        rank.precision.scaler.load_state_dict(ranks[0].get("precision", {}))  # there was none before --amp
        return found


class SavedModel(Watcher):
    """Gives the file of the final model to the launching process."""

    name = "model"

    def end_run(self, rank: Rank) -> bytes | None:
        """Return its content on the rank that evaluates. All ranks take part."""
        options: Any = rank.options
        with rank.recorder.evaluating():
            shown = rank.strategy.model()
            if rank.transport.rank != REPORTER:
                return None
            with parameters_from(rank.replica.model, shown):
                return to_bytes(rank.replica.model, options.save, options, rank.data)
