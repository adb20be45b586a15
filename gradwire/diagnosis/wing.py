"""What diagnosis adds to a run: --hashes, by which two runs are compared, and --memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from gradwire.core.launchers import Launcher
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE_ALWAYS
from gradwire.core.training.options import Panel
from gradwire.core.training.watchers import Watcher
from gradwire.core.training.wing import Record, Wing
from gradwire.core.workloads.data import Data


@dataclass(frozen=True, kw_only=True)
class DiagnosisOptions(Panel):
    """What is found out beside the scores."""

    hashes: bool = field(default=False, metadata=MAY_CHANGE_ALWAYS)
    """Keep hashes of every step's batch, gradients and parameters, by which python -m gradwire why tells why two runs
    differ. It reads all of these twice more: 5.8 million parameters with 16 samples a step took 1.8 times as long."""
    memory: bool = field(default=False, metadata=MAY_CHANGE_ALWAYS)
    """Count the memory of each rank by kind: parameters, gradients, optimizer state, activations and others. Every
    operation takes some microseconds more."""


class Diagnosis(Wing):
    """Hashes and memory; what they need is loaded when they are wanted."""

    title = "diagnosis"
    panel = DiagnosisOptions

    def check(self, options: DiagnosisOptions, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check that there is an x to hash."""
        if options.hashes and getattr(options.strategy, "shards_x", False):
            raise UsageError(f"--hashes: no rank of {options.strategy.name} has all of x while it trains; leave it out")

    def watchers(self, options: DiagnosisOptions) -> list[Watcher]:
        """Return what counts and hashes."""
        watchers: list[Watcher] = []
        if options.memory:
            from gradwire.diagnosis.watchers import MemoryWatcher

            watchers.append(MemoryWatcher())
        if options.hashes:
            from gradwire.diagnosis.watchers import HashWatcher

            watchers.append(HashWatcher())
        return watchers

    def record(self, options: DiagnosisOptions, record: Record) -> None:
        """Add a file of hashes, one of memory, and the peaks of memory."""
        place = Path(options.results_dir) / str(options.run_name)
        if hashed := record.found("hashes"):
            from gradwire.diagnosis.hashes import packed
            from gradwire.results import HASHES

            record.files[f"{place}{HASHES}"] = packed(hashed)
        if uses := record.found("memory"):
            from gradwire.diagnosis import memory_use

            record.facts["memory"] = {rank: use.recorded() for rank, use in uses.items()}
            record.files[f"{place}{memory_use.SUFFIX}"] = memory_use.packed(uses)

    def summary(self, options: DiagnosisOptions, facts: Mapping[str, Any]) -> list[str]:
        """Return the peaks of memory."""
        if memory := facts.get("memory"):
            from gradwire.diagnosis import memory_use

            return [memory_use.summary(memory)]
        return []


WING = Diagnosis()
