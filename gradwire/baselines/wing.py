"""The wing of the built-ins: the options that they refuse, and the record of the backend of their messages."""

import sys
from typing import Any

from gradwire.core.launchers import Launcher
from gradwire.core.records import tables
from gradwire.core.records.errors import UsageError
from gradwire.core.training.options import CoreOptions
from gradwire.core.training.wing import Record, Wing


def _is_builtin(strategy: Any) -> bool:
    """Return whether a strategy is a way of torch's own, whose script has loaded their class then."""
    module = sys.modules.get("gradwire.baselines.builtin")
    return module is not None and isinstance(strategy, module.Builtin)


class Baselines(Wing):
    """Torch's own ways."""

    def resolve(self, options: Any, launcher: Launcher) -> CoreOptions:
        """Check that torch can carry the messages."""
        strategy = options.strategy
        if _is_builtin(strategy):
            if not launcher.shared_memory:
                raise UsageError(f"{strategy.name} starts its processes itself; run it without {launcher.name}")
            if options.link:
                raise UsageError(
                    f"--bandwidth, --latency: torch itself carries the messages of {strategy.name}; leave them out"
                )
            for option in ("slow", "jitter"):
                if strategy.single_process and getattr(options, option, None):
                    raise UsageError(f"--{option}: {strategy.name} is one process, in which no worker is slow alone")
        checked: CoreOptions = options
        return checked

    def record(self, options: Any, record: Record) -> None:
        """Record the backend that carried the messages, and whether torch counted them."""
        strategy = options.strategy
        if _is_builtin(strategy):
            record.facts |= {"transport": strategy.transport_name, "bytes": strategy.bytes_source}
            if strategy.bytes_source.startswith("not counted"):
                record.table[list(tables.MESSAGE_COLUMNS)] = None
                record.table = record.table.astype(tables.COLUMNS)


WING = Baselines()
