"""Make the data of the notebooks again: results/HARDWARE/*.csv and *.json, one pair a run.

python experiments/run.py param_server      # or ring_all_reduce, scaling, all

python experiments/run.py all --quick       # all of it small, in two minutes: digits, three epochs

The data set is Fashion-MNIST; `--download` lets torchvision fetch it. Runs that are there already are skipped, so an
interrupted command goes on where it was. A run that fails is reported, and the others are carried on with.
"""

import signal
import sys

KEPT = "finished runs are kept, and the same command goes on from there"
if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    signal.signal(
        signal.SIGINT, lambda *_: (print(f"\nerror: ended by SIGINT; {KEPT}", file=sys.stderr), sys.exit(130))
    )

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tqdm import tqdm
from tyro.conf import Positional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import ring_animation
from experiments.runs import declared, hardware, same_run
from records.files import check_writable, load_metadata, load_table
from records.tables import aligned, finished_epochs
from training import Options, run
from training.cli import guarded, parse
from training.failures import RunFailed
from workloads import datasets
from workloads.errors import UsageError

RING_TRACE = "ring_trace.csv"  # the exchange that is drawn as an animation


@dataclass(frozen=True)
class Settings:
    """Which runs, and where things are."""

    experiment: Positional[Literal["param_server", "ring_all_reduce", "scaling", "all"]]
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


def main(settings: Settings) -> None:
    """Make the runs that are not there yet. Raises UsageError; RunFailed at the end if a run failed."""
    if settings.results_dir == "":
        raise UsageError("--results_dir: is empty; name a folder, or leave it out")
    runs = declared(settings.experiment, settings.quick)
    device = replace(runs[0], device=settings.device).resolve().device
    directory = Path(settings.results_dir or Path("results") / ("quick" if settings.quick else hardware(device)))
    runs = [replace(one, device=device, data_dir=settings.data_dir, results_dir=str(directory)) for one in runs]
    datasets.load(runs[0].dataset, settings.data_dir, settings.download)  # its absence is not each run's failure
    try:
        check_writable(directory)
    except OSError as error:
        raise UsageError(f"--results_dir: cannot write in {directory}: {error.strerror or error}") from error
    todo = [one for one in runs if not is_there(one)]
    jobs: dict[str, Callable[[], object]] = {str(one.run_name): partial(run, one, quiet=True) for one in todo}
    if settings.experiment in ("ring_all_reduce", "all") and not (directory / RING_TRACE).exists():
        jobs[RING_TRACE] = partial(ring_animation.record, directory / RING_TRACE)
    failed = []
    bar = tqdm(jobs.items(), unit="run")
    for name, job in bar:
        bar.set_description(name)
        try:
            job()
        except (RunFailed, UsageError, OSError) as error:
            failed.append(name)
            bar.write(f"failed: {name}: {' '.join(str(error).split())}", file=sys.stderr)
    rows = [("runs made", len(jobs) - len(failed)), ("there already", len(runs) - len(todo)), ("failed", len(failed))]
    print(aligned([(name, str(n)) for name, n in rows], left=1))
    print(f"results in {directory}; a run whose files are deleted is made again")
    if failed:
        named = ", ".join(failed[:3]) + (", ..." if len(failed) > 3 else "")
        raise RunFailed(f"{len(failed)} of {len(jobs)} runs failed: {named}")


def is_there(options: Options) -> bool:
    """Return whether this very run is there, whole and good: its files, what it measured, and that it did not fail."""
    path = Path(options.results_dir) / f"{options.run_name}"
    try:
        metadata, table = load_metadata(f"{path}.json"), load_table(f"{path}.csv")
        good = metadata["replicas_identical"] or not options.kind.replicas_agree
        return good and same_run(options, metadata["options"]) and finished_epochs(table) == options.epochs
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, None, __doc__)), KEPT))
