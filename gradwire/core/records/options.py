"""The options of what is written of a run, and what says of an option when its value may change."""

from dataclasses import dataclass, field

MAY_CHANGE = "may change"
MAY_CHANGE_ON_RESUME = {MAY_CHANGE: "on resume"}
"""Metadata of an option that a resumed run may have another value for; without it, the option decides the result."""
MAY_CHANGE_ALWAYS = {MAY_CHANGE: "always"}
"""Metadata of an option that changes nothing in the result: a resumed or replayed run may have another value."""
OF_THIS_RUN = {MAY_CHANGE: "always", "of this run": True}
"""Metadata of an option of this run only: a replay does not take it over from the run that it repeats."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What is written of the run, and where."""

    results_dir: str = field(default="results", metadata=MAY_CHANGE_ALWAYS)
    """Where the run's CSV, JSON and events are written."""
    run_name: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Name of these files. Default: strategy, number of processes, data set, model, date and time."""
    events: bool = field(default=True, metadata=MAY_CHANGE_ALWAYS)
    """Record every phase and message; without, the tables have losses and scores only."""
