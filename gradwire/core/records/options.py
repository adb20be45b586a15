"""The options of the files that a run writes, and the metadata that says when an option may change."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from gradwire.core.records.errors import UsageError, unknown

T = TypeVar("T")
MAY_CHANGE = "may change"
MAY_CHANGE_ON_RESUME = {MAY_CHANGE: "on resume"}
"""Metadata of an option that a resumed run may have another value for; without it, the option decides the result."""
MAY_CHANGE_ALWAYS = {MAY_CHANGE: "always"}
"""Metadata of an option that changes nothing in the result: a resumed or replayed run may have another value."""
OF_THIS_RUN = {MAY_CHANGE: "always", "of this run": True}
"""Metadata of an option of this run only: a replay does not take it over from the run that it repeats."""

LIMITS = "limits"
"""Metadata of an option: the `Limits` of its value."""


class Limits(NamedTuple):
    """The bounds and choices of an option's value, unless it is None: see `option`."""

    least: float | None
    most: float | None
    above: float | None
    below: float | None
    choices: Collection[str]


def option(
    default: T,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] = (),
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Return a field of a dataclass of options, which is checked before a run begins, unless it is None.

    `least`, `most`: the smallest and the largest number that it may be; `above`: it is more than that; `below`: it is
    from 0 to less than that; `choices`: the words that it may be.
    """
    limits = Limits(least, most, above, below, choices)
    made: T = field(default=default, metadata={**metadata, LIMITS: limits})
    return made


def check_limits(options: Any) -> None:
    """Check that each option of a dataclass is what its field allows. Raises UsageError."""
    for entry in dataclasses.fields(options):
        value, limits = getattr(options, entry.name), entry.metadata.get(LIMITS)
        if value is None or limits is None:
            continue
        if limits.choices and value not in limits.choices:
            raise unknown(f"--{entry.name}", value, limits.choices)
        if limits.least is not None and not value >= limits.least:
            raise UsageError(f"--{entry.name} {value}: must be at least {limits.least}")
        if limits.most is not None and not value <= limits.most:
            raise UsageError(f"--{entry.name} {value}: must be at most {limits.most}")
        if limits.above is not None and not value > limits.above:
            raise UsageError(f"--{entry.name} {value}: must be more than {limits.above:g}")
        if limits.below is not None and not 0 <= value < limits.below:
            raise UsageError(f"--{entry.name} {value}: must be at least 0 and less than {limits.below:g}")


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What is written of the run, and where."""

    results_dir: str = field(default="results", metadata=MAY_CHANGE_ALWAYS)
    """Where the run's CSV, JSON and events are written."""
    run_name: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Name of these files. Default: strategy, number of processes, data set, model, date and time."""
    events: bool = field(default=True, metadata=MAY_CHANGE_ALWAYS)
    """Record every phase and message; without, the tables have losses and scores only."""
