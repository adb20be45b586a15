"""`simulate.py --script FILE --sweep`: a run of the script for every combination of options, shown as one table."""

import itertools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from gradwire.arguments import read_options
from gradwire.core.records.atomic import check_writable_by, write_atomically
from gradwire.core.records.errors import UsageError
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.simulate import ClusterScript, prepare, run_on_cluster
from gradwire.virtual_time.axes import read_axes

_NOT_VARIED = ("help", "script", "on_cpu", "sweep", "results_dir", "run_name", "hashes")


def sweep(given: Sequence[str], options: ClusterScript, script: Script) -> None:
    """Run a script with every combination of the varied options; print a table, and write it.

    Raises UsageError, RunFailed.
    """
    if options.run_name is not None:
        raise UsageError("--run_name: a sweep writes one table and no records; leave it out")
    if options.hashes:
        raise UsageError("--hashes: a sweep writes one table and no records; leave it out")
    axes = read_axes(options.sweep, _NOT_VARIED)
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    runs = [_varied(given, values) for values in combinations]  # before the first starts: none is wrong
    folder = Path(options.results_dir)
    check_writable_by("results_dir", folder)
    rows = []
    for values, varied in zip(combinations, tqdm(runs, unit="run", leave=False, disable=None), strict=True):
        ran = run_on_cluster(varied, script, quiet=True, writes=False)
        figures = {"seconds": ran.seconds, "seconds_a_step": ran.seconds_a_step, "mb_sent": ran.bytes / 1e6}
        rows.append({**values, **figures})
    frame = pd.DataFrame(rows)
    print(frame.to_string(index=False, float_format="{:.4g}".format))
    path = folder / f"sweep-{datetime.now():%Y%m%d-%H%M%S-%f}.csv"
    with write_atomically(path) as unfinished:
        frame.to_csv(unfinished, index=False)
    print(f"table   {path}")


def _varied(given: Sequence[str], values: dict[str, str]) -> ClusterScript:
    """Return the options of the command line with these of the sweep. Raises UsageError."""
    try:
        options = read_options([*given, *(f"--{name}={value}" for name, value in values.items())], ClusterScript, "")
        prepare(options)
        return options
    except UsageError as error:
        combination = ", ".join(f"{name}={value}" for name, value in values.items())
        raise UsageError(f"--sweep, at {combination}: {error}") from None
