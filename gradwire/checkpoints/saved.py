"""What one rank leaves: checkpoints, from which a run continues, and what it returns when the run has ended."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from gradwire.checkpoints import files
from gradwire.checkpoints.folder import latest
from gradwire.checkpoints.model_files import to_bytes
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.events import EventFile
from gradwire.core.strategy.base import Strategy
from gradwire.core.strategy.kept import random_state, set_random_state
from gradwire.core.strategy.replica import Replica, bytes_of, parameters_from
from gradwire.core.strategy.traits import Choice, choice_of
from gradwire.core.training.evaluation import REPORTER
from gradwire.core.training.options import Options
from gradwire.core.training.passes import Precision
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import Alignment, WaitTimeout
from gradwire.core.workloads.data import Data
from gradwire.diagnosis.hashes import Arrays
from gradwire.diagnosis.memory_use import MemoryUse


@runtime_checkable
class Gathers(Protocol):
    """A strategy whose ranks may gather the state of all on rank 0."""

    @property
    def gathers(self) -> bool:
        """Whether rank 0's `state_dict` has what the others' lack: all ranks call it together."""


@dataclass
class Position:
    """Where a rank is in its run."""

    done: int = 0  # steps, when the run was resumed
    taken: int = 0  # steps, of this rank
    loss_sum: float = 0.0  # of this epoch's samples
    n: int = 0  # of what their mean losses are means of
    samples: int = 0
    samples_before: int = 0  # of them, those of the run that this one continues

    def begin_epoch(self) -> None:
        """Forget the samples of the epoch before."""
        self.loss_sum, self.n, self.samples, self.samples_before = 0.0, 0, 0, 0


class Saved:
    """The checkpoints of one rank, to write and, if it is resumed, to continue from."""

    def __init__(
        self, transport: Transport, strategy: Strategy, target: files.Target, resume: str | None, precision: Precision
    ) -> None:
        self._transport, self._strategy, self._target, self._resume = transport, strategy, target, resume
        self._precision = precision
        serving = [rank for rank, role in enumerate(target.roles) if role == "server"]
        # Ranks that do not keep step never come to the same checkpoint: then few have all of it.
        self._few_have_state = strategy.traits.workers_may_die or strategy.traits.asynchronous
        self._ranks = (serving or [REPORTER]) if self._few_have_state else list(range(len(target.roles)))
        self.position = Position()

    def write(self, step: int) -> None:
        """Write a checkpoint after `step` steps. Raises RunFailed if it cannot be written."""
        transport = self._transport
        if transport.rank not in self._ranks:
            return
        strategy, at, ranks = self._strategy, self.position, self._ranks
        with transport.recorder.evaluating():
            own = strategy.state_dict()
            shown = strategy.model() if strategy.traits.has_x and not self._few_have_state else own.get("x")
        position = {"step": step, "epoch": transport.recorder.epoch, "loss_sum": at.loss_sum, "n": at.n}
        state: dict[str, Any] = {
            "strategy": own,
            "model": None,
            "position": position | {"samples": at.samples},
            **random_state(transport.device),
            "precision": self._precision.scaler.state_dict(),
        }
        if transport.rank == REPORTER and shown is not None:  # what is to be scored; the same tensor is written once
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

    def load(self) -> dict[str, Any] | None:
        """Take over this rank's position in the checkpoint to resume from; return its strategy's state.

        None if this rank has none. Raises UsageError if its file is damaged.
        """
        path, transport = self._resume, self._transport
        if not path or transport.rejoined or transport.rank not in self._ranks:
            return None
        checkpoint = latest(path)
        run = files.load_run(checkpoint)
        if self._strategy.traits.reshards and not run["n_ranks"] == len(run["ranks"]) == transport.world_size:
            # There is no file for each rank: rank 0 takes over what all have counted.
            ranks = [files.load_rank(checkpoint, rank) for rank in run["ranks"]]
            ranks += ranks[0].get("others", [])
            counted, found = [] if transport.rank else ranks, {"ranks": [one["strategy"] for one in ranks]}
            own = ranks[transport.rank : transport.rank + 1]  # the others draw from their own seeds
        else:
            counted = own = ranks = [files.load_rank(checkpoint, transport.rank)]
            found = own[0]["strategy"]
        position = ranks[0]["position"]
        loss_sum, n, samples = (
            sum(one["position"].get(key, one["position"]["samples"]) for one in counted)  # there was no n before --task
            for key in ("loss_sum", "n", "samples")
        )
        self.position = Position(position["step"], position["step"], loss_sum, n, samples, samples)
        transport.recorder.epoch = position["epoch"]
        for state in own:
            set_random_state(state, transport.device)
        self._precision.scaler.load_state_dict(ranks[0].get("precision", {}))  # there was none before --amp
        return found


@dataclass
class RankResult:
    """What a rank returns: its events, a hash of its module's state; the reporter also the model to be saved."""

    rank: int
    events: EventFile
    parameter_hash: str
    optimizer_bytes: int  # the memory of the optimizer's state on this rank
    saved_model: bytes | None
    arrivals: Sequence[int]  # whose messages came, in their order, where that decides the result
    deaths: list[dict[str, Any]]  # of a server: of its workers, where it continues without them
    alignment: Alignment | None  # where the ranks may run on several machines
    threads: int  # that compute
    hashes: Arrays
    memory: MemoryUse | None  # if it was counted
    choice: Choice | None  # between algorithms, if it was made
    applied: str  # of a server that records the staleness of what it applies: "gradient" or "push"


def result_of(
    strategy: Strategy, replica: Replica, transport: Transport, options: Options, data: Data, hashes: Arrays
) -> RankResult:
    """Return the result of this rank, which gives back what its training has taken."""
    saved, memory = None, transport.recorder.memory
    use = memory.use() if memory else None
    if options.save is not None:
        with transport.recorder.evaluating():
            shown = strategy.model()
        if transport.rank == REPORTER:
            with parameters_from(replica.model, shown):
                saved = to_bytes(replica.model, options.save, options, data)
    replica.close()
    events = transport.recorder.close()
    return RankResult(
        transport.rank,
        events if transport.same_machine else events.carry(),
        hashlib.sha256(bytes_of(replica.tensors()).numpy().tobytes()).hexdigest()[:16],
        strategy.state_bytes,
        saved,
        transport.inbox.arrivals,
        list(transport.recorder.deaths),
        transport.alignment,
        torch.get_num_threads(),
        hashes,
        use,
        choice_of(strategy),
        transport.recorder.applied,
    )
