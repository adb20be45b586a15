"""`simulate.py --sweep`: a run for every combination of the varied options, shown as one table."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from gradwire.command_line import parse_with
from gradwire.compression.coding import CannotCarry
from gradwire.core.records.atomic import check_writable_by, write_atomically
from gradwire.core.records.errors import UsageError
from gradwire.options import Options
from gradwire.pictures.seeds import SEED, note_on_batches, over_seeds, short
from gradwire.virtual_time import cluster as clusters
from gradwire.virtual_time import footprints
from gradwire.virtual_time.axes import read_axes
from gradwire.virtual_time.cluster import fit
from gradwire.virtual_time.dry_run import check as check_dry
from gradwire.virtual_time.dry_run import check_model
from gradwire.virtual_time.meta_models import sizes_of
from gradwire.virtual_time.simulate import SimulationOptions, check, is_dry, run_or_time

_NOT_VARIED = ("help", "list", "sweep", "results_dir", "run_name", "save", "checkpoint_dir", "resume", "replay")


def sweep(given: Sequence[str], chosen: SimulationOptions) -> None:
    """Run every combination of the varied options; print a table, write it, and draw the speed-up.

    Raises UsageError, RunFailed.
    """
    axes = read_axes(chosen.sweep, _NOT_VARIED)
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    runs, combinations, left_out = _carried(given, combinations)  # before the first starts: none is wrong
    if chosen.fits_gb is not None:
        models = [(options, sizes_of(options, simulated.parameters, simulated.layers)) for options, simulated in runs]
        print(footprints.table(combinations, models, chosen.fits_gb))
        return
    folder = Path(runs[0][0].results_dir)
    check_writable_by("results_dir", folder)
    rows = []
    for values, (options, chosen) in zip(combinations, tqdm(runs, unit="run", leave=False), strict=True):
        rows.append({"strategy": options.strategy.name, **values, **run_or_time(options, chosen, quiet=True).figures()})
    frame = pd.DataFrame(rows)
    print(over_seeds(frame, axes).to_string(index=False, float_format=short))
    if note := _note_on_batches(combinations, [options for options, _ in runs]):
        print(note)
    for line in left_out:
        print(f"left out {line}")
    path = folder / f"sweep-{datetime.now():%Y%m%d-%H%M%S-%f}.csv"
    with write_atomically(path) as unfinished:
        frame.to_csv(unfinished, index=False)
    print(f"table   {path}")
    if "n_gpus" in axes:
        from gradwire.pictures import plot  # matplotlib is slow to load

        others = [name for name in axes if name not in ("n_gpus", SEED)]
        plot.draw_sweep(frame, others, path.with_suffix(".png"), _alike(*runs[0], axes))
        print(f"figure  {path.with_suffix('.png')}")


def _note_on_batches(combinations: Sequence[Mapping[str, str]], runs: Sequence[Options]) -> str:
    """Return one line if strategies, all else being the same, take batches of different sizes; else ""."""
    batches: dict[str, list[tuple[str, int | None]]] = {}
    for values, options in zip(combinations, map(fit, runs), strict=True):
        others = str({name: value for name, value in values.items() if name != "strategy"})
        n_gpus = options.n_gpus or 1
        size = options.global_batch_size or options.batch_size * options.strategy.count_workers(n_gpus)
        batches.setdefault(others, []).append((options.strategy.name, size))
    return next(filter(None, map(note_on_batches, batches.values())), "")


def _alike(options: Options, chosen: SimulationOptions, axes: Mapping[str, Any]) -> str:
    """Return what all runs of a sweep have alike, for the title of its figure."""
    values = {
        "parameters": chosen.parameters, "layers": chosen.layers if chosen.layers > 1 else None,
        "bandwidth": options.bandwidth or clusters.BANDWIDTH, "latency": options.latency or clusters.LATENCY,
        "compute": chosen.compute, "flops": chosen.flops, "batch_size": options.batch_size,
        "jitter": options.jitter or None,
    }  # fmt: skip
    trained = [f"{options.model} on {options.dataset}"] if not axes.keys() & {"parameters", "model", "dataset"} else []
    known = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
        if value is not None and name not in axes
    ]
    return ", ".join([*(trained if chosen.parameters is None else []), *known])


def _check_fits(options: Options, gigabytes: float, is_dry: bool) -> None:
    if not 0 < gigabytes <= 1e9:
        raise UsageError(f"--fits_gb {gigabytes:g}: must be above 0 and at most 1e9, such as 80")
    if not is_dry:
        raise UsageError(f"--fits_gb {gigabytes:g}: of --parameters, or of a --model on --device meta; give one")
    if options.n_gpus is not None:
        raise UsageError(f"--n_gpus {options.n_gpus}: --fits_gb finds it; leave one out")


def _carried(
    given: Sequence[str], combinations: Sequence[dict[str, str]]
) -> tuple[list[tuple[Options, SimulationOptions]], list[dict[str, str]], list[str]]:
    """Return the runs of a sweep, the varied options of each, and a line for each pair of codec and strategy left out.

    Raises UsageError, also if none is left.
    """
    runs, kept, left_out = [], [], []
    for values in combinations:
        try:
            runs.append(_varied(given, values))
            kept.append(values)
        except CannotCarry as error:
            left_out.append(str(error).split("; ")[0].removeprefix("--sweep, "))
            refused = error
    if not runs:
        raise refused
    return runs, kept, left_out


def _varied(given: Sequence[str], values: dict[str, str]) -> tuple[Options, SimulationOptions]:
    """Return the options of the command line with these of the sweep. Raises UsageError."""
    more = [f"--{name}={value}" for name, value in values.items()]
    try:
        options, chosen = parse_with([*given, *more], None, "", SimulationOptions)
        if chosen.fits_gb is not None:
            _check_fits(options, chosen.fits_gb, is_dry(options, chosen))
            check_model(fit(options), chosen, chosen.parameters, chosen.steps, chosen.layers)
        elif is_dry(options, chosen):
            check_dry(fit(options), chosen, chosen.parameters, chosen.steps, chosen.layers)
        else:
            check(options, chosen)
    except UsageError as error:
        if not values:
            raise
        combination = ", ".join(f"{name}={value}" for name, value in values.items())
        raise type(error)(f"--sweep, at {combination}: {error}") from None
    for name in ("run_name", "save", "checkpoint_dir"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: every run of a sweep has files of its own; leave it out")
    return options, chosen
