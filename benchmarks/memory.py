"""The memory of a rank does not grow with its steps, nor does that of the launcher while it makes the records of them.

python benchmarks/memory.py

One process records so many steps of five events, as a rank of a run does; another makes the table and the files of it.
`rank_mb` and `records_mb` are the most memory that each has had, of which the interpreter and torch take nearly all;
`events_mb` is what the events take on the disk.
"""

import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Settings, figure, main
from records.events import EventFile, RunEvents
from records.files import write_run
from records.tables import epoch_table
from training import launch
from transports.base import Transport

_STEPS_OF_AN_EPOCH = 10_000


@dataclass(frozen=True)
class MemorySettings(Settings):
    """Options of the memory benchmark."""

    repeats: int = 3
    steps: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """How many steps are recorded."""


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def record(transport: Transport, steps: int, path: Path) -> tuple[EventFile, float]:
    """Record so many steps; return the events, and how many MB of memory this process has had at most."""
    recorder = transport.recorder
    recorder.write_to(path)
    for i in range(steps):
        recorder.epoch, recorder.step = 1 + i // _STEPS_OF_AN_EPOCH, i
        t = i / 1e3
        recorder.add("forward", t, t + 1e-4)
        recorder.add("backward", t, t + 1e-4)
        recorder.add("communicate", t, t + 1e-4, "send", 1, "gradient", 1000)
        recorder.add("wait", t, t + 1e-4, peer=1, tag="parameters")
        recorder.add("communicate", t, t + 1e-4, "recv", 1, "parameters", 1000)
        if (i + 1) % _STEPS_OF_AN_EPOCH == 0 or i + 1 == steps:
            recorder.mark("epoch_s", 1.0)
    return recorder.close(), _peak_mb()


def make_records(transport: Transport, events: EventFile, folder: Path) -> float:
    """Make the records of a run of one rank; return how many MB of memory this process has had at most."""
    table = epoch_table(RunEvents([events]), "memory", 1, ["worker"])
    write_run(folder, "run", RunEvents([events]), table, {})
    return _peak_mb()


def measure(settings: MemorySettings) -> Iterator[Row]:
    """Yield one row for each number of steps."""
    for steps in settings.steps:
        ranks, records, size = [], [], 0
        for _ in range(settings.repeats):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "rank-0.events"
                ((events, peak),) = launch(record, 1, steps, path, record=True)
                ranks.append(peak)
                size = path.stat().st_size
                records += launch(make_records, 1, events, Path(folder))
        yield {"steps": steps, **figure("rank_mb", ranks), **figure("records_mb", records), "events_mb": size / 1e6}


if __name__ == "__main__":
    sys.exit(main(__doc__, MemorySettings, measure))
