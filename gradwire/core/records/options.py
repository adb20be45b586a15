"""The options of what is written of a run, and what says of an option when its value may change."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from gradwire.core.records.errors import UsageError

T = TypeVar("T")
MAY_CHANGE = "may change"
MAY_CHANGE_ON_RESUME = {MAY_CHANGE: "on resume"}
"""Metadata of an option that a resumed run may have another value for; without it, the option decides the result."""
MAY_CHANGE_ALWAYS = {MAY_CHANGE: "always"}
"""Metadata of an option that changes nothing in the result: a resumed or replayed run may have another value."""
OF_THIS_RUN = {MAY_CHANGE: "always", "of this run": True}
"""Metadata of an option of this run only: a replay does not take it over from the run that it repeats."""

LEAST = "least"
"""Metadata of an option that is a number: the smallest that it may be."""


def option(default: T, least: float | None = None, metadata: Mapping[str, Any] = MappingProxyType({})) -> T:
    """Return a field of a dataclass of options; `least`: the smallest number that it may be, unless it is None."""
    limits = {} if least is None else {LEAST: least}
    made: T = field(default=default, metadata={**metadata, **limits})
    return made


def check_limits(options: Any) -> None:
    """Check that each option of a dataclass is what its field allows. Raises UsageError."""
    for entry in dataclasses.fields(options):
        value, least = getattr(options, entry.name), entry.metadata.get(LEAST)
        if least is not None and value is not None and not value >= least:
            raise UsageError(f"--{entry.name} {value}: must be at least {least}")


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What is written of the run, and where."""

    results_dir: str = field(default="results", metadata=MAY_CHANGE_ALWAYS)
    """Where the run's CSV, JSON and events are written."""
    run_name: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Name of these files. Default: strategy, number of processes, data set, model, date and time."""
    events: bool = field(default=True, metadata=MAY_CHANGE_ALWAYS)
    """Record every phase and message; without, the tables have losses and scores only."""
