"""Make the data of the notebooks again: results/HARDWARE/*.csv and *.json, one pair a run.

python experiments/run.py param_server      # or ring_all_reduce, scaling, server_family, all

python experiments/run.py all --quick       # all of it small, in two minutes: digits, three epochs

The data set is Fashion-MNIST; `--download` lets torchvision fetch it. Runs that are there already are skipped, so an
interrupted command continues where it was. A run that fails is reported, and the others are made all the same. The runs
of server_family come in two parts: those that find each server's learning rate, then those that use it.
"""

import signal
import sys

KEPT = "finished runs are kept, and the same command continues from there"
if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    signal.signal(
        signal.SIGINT, lambda *_: (print(f"\nerror: ended by SIGINT; {KEPT}", file=sys.stderr), sys.exit(130))
    )

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm
from tyro.conf import Positional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import family_runs, lost_updates, ring_animation
from experiments.family_runs import FAMILY, LOST_UPDATES
from experiments.recorded import is_there
from experiments.runs import declared, hardware
from records.errors import RunFailed, UsageError
from records.files import check_writable
from records.tables import aligned
from records.unfinished import delete_records
from training import Options, run
from training.checks import resolve
from training.command_line import guarded, parse
from workloads import datasets

RING_TRACE = "ring_trace.csv"  # the exchange that is drawn as an animation


@dataclass(frozen=True)
class Settings:
    """Which runs, and where things are."""

    experiment: Positional[Literal["param_server", "ring_all_reduce", "scaling", "server_family", "all"]]
    """The experiment whose runs are made."""
    quick: bool = False
    """All of it small, in two minutes: digits, three epochs."""
    results_dir: str | None = None
    """Where the results are written. Default: results/HARDWARE (with --quick: results/quick)."""
    data_dir: str = "data"
    """Where the data set lies."""
    download: bool = False
    """Let torchvision download the data set if it is not there."""
    device: str = "auto"
    """auto (cuda if there is a GPU), cpu or cuda."""


@dataclass
class _Work:
    """What was done: the runs made, how many were there already, and those that failed."""

    made: list[str] = field(default_factory=list)
    there: int = 0
    failed: list[str] = field(default_factory=list)

    def do(
        self,
        runs: Sequence[Options],
        is_made: Callable[[Options], bool],
        make: Callable[[Options], object],
        others: Mapping[Path, Callable[[Path], object]],
    ) -> None:
        """Make the runs, and the other files, that are not there yet; continue after a failure."""
        todo = [one for one in runs if not is_made(one)]
        self.there += len(runs) - len(todo)
        jobs: dict[str, Callable[[], object]] = {str(one.run_name): partial(_make_anew, make, one) for one in todo}
        jobs |= {path.name: partial(record, path) for path, record in others.items() if not path.exists()}
        bar = tqdm(jobs.items(), unit="run")
        for name, job in bar:
            bar.set_description(name)
            with _interrupts_of_destructors():
                try:
                    job()
                    self.made.append(name)
                except (RunFailed, UsageError, OSError) as error:
                    self.failed.append(name)
                    bar.write(f"failed: {name}: {' '.join(str(error).split())}", file=sys.stderr)


def _make_anew(make: Callable[[Options], object], one: Options) -> None:
    """Make a run in place of one that was damaged, or made with other options."""
    delete_records(one.results_dir, str(one.run_name))
    make(one)


@contextmanager
def _interrupts_of_destructors() -> Iterator[None]:
    """Raise after the block an interrupt that came while a destructor ran: there Python only prints exceptions."""
    came: list[KeyboardInterrupt] = []

    def note(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            came.append(KeyboardInterrupt(*unraisable.exc_value.args))
        else:
            former(unraisable)

    former, sys.unraisablehook = sys.unraisablehook, note
    try:
        yield
    finally:
        sys.unraisablehook = former
    if came:
        raise came[0]


def main(settings: Settings) -> None:
    """Make the runs that are not there yet. Raises UsageError; RunFailed at the end if a run failed."""
    if settings.results_dir == "":
        raise UsageError("--results_dir: is empty; name a folder, or leave it out")
    runs = [] if settings.experiment == FAMILY else declared(settings.experiment, settings.quick)
    tuning = family_runs.tuning(settings.quick) if settings.experiment in (FAMILY, "all") else []
    first = [*runs, *tuning][0]
    device = resolve(replace(first, device=settings.device)).device
    directory = Path(settings.results_dir or Path("results") / ("quick" if settings.quick else hardware(device)))
    datasets.load(first.dataset, settings.data_dir, settings.download)  # its absence is not each run's failure
    try:
        for folder in (directory, *([directory / FAMILY] if tuning else [])):
            check_writable(folder)
    except OSError as error:
        raise UsageError(f"--results_dir: cannot write in {directory}: {error.strerror or error}") from error

    def placed(runs: Sequence[Options], folder: Path = directory) -> list[Options]:
        return [replace(one, device=device, data_dir=settings.data_dir, results_dir=str(folder)) for one in runs]

    work = _Work()
    if runs:
        rings = settings.experiment in ("ring_all_reduce", "all")
        ring_trace = {directory / RING_TRACE: ring_animation.record} if rings else {}
        work.do(placed(runs), is_there, partial(run, quiet=True), ring_trace)
    if tuning:
        family = directory / FAMILY
        tuning = placed(tuning, family)
        work.do(tuning, family_runs.is_made, family_runs.make, {family / LOST_UPDATES: lost_updates.record})
        if all(map(family_runs.is_made, tuning)):
            rates = family_runs.tuned(family_runs.grid(family, settings.quick))
            finals = placed(family_runs.finals(rates, settings.quick), family)
            work.do(finals, family_runs.is_made, family_runs.make, {})
    rows = [("runs made", len(work.made)), ("there already", work.there), ("failed", len(work.failed))]
    print(aligned([(name, str(n)) for name, n in rows], left=1))
    print(f"results in {directory}; a run whose files are deleted is made again")
    if work.failed:
        named = ", ".join(work.failed[:3]) + (", ..." if len(work.failed) > 3 else "")
        raise RunFailed(f"{len(work.failed)} of {len(work.made) + len(work.failed)} runs failed: {named}")


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, __doc__)), KEPT))
