"""Runs side by side: those of several seeds as one, with mean and range; and whether all take the same batches."""

import json
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from gradwire.core.records.tables import finished_epochs, workers
from gradwire.pictures.finished import LEFT_OUT, Run

SEED = "seed"
_OF_ONE_RUN = {*LEFT_OUT, SEED}


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in groups whose options differ in the seed only, in the order of the first of each."""
    found: dict[str, list[Run]] = {}
    for i, run in enumerate(runs):
        of_all = {name: value for name, value in run.options.items() if name not in _OF_ONE_RUN}
        table = run.table
        what = [str(table["strategy"].iloc[0]), int(table["n_gpus"].iloc[0]), finished_epochs(table), of_all]
        key = json.dumps(what, sort_keys=True, default=str) if SEED in run.options else str(i)
        if any(run.options[SEED] == other.options[SEED] for other in found.get(key, ())):
            key += str(i)  # the same run once more
        found.setdefault(key, []).append(run)
    return list(found.values())


def name_of(group: Sequence[Run]) -> str:
    """Return the name of a group."""
    return group[0].name if len(group) == 1 else f"{group[0].name} and {len(group) - 1} more seeds"


def mean_and_range(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return the mean of some values, and the least and the greatest, each by `show`; one, if all look alike."""
    least, greatest, mean = show(min(values)), show(max(values)), show(sum(values) / len(values))
    return mean if least == greatest else f"{mean} ({least} to {greatest})"


def summarize(texts: Sequence[str]) -> str:
    """Return a cell that stands for those of several runs: numbers, also with commas between, by mean and range."""
    if len(set(texts)) == 1:
        return texts[0]
    parts = [text.split(", ") for text in texts]
    try:
        columns = [list(map(float, column)) for column in zip(*parts, strict=True)]
    except ValueError:
        return " or ".join(dict.fromkeys(texts))
    decimals = [len(part.partition(".")[2]) for part in parts[0]]
    return ", ".join(
        mean_and_range(column, lambda value, digits=n: f"{value:.{digits}f}")  # type: ignore[misc]
        for column, n in zip(columns, decimals, strict=True)
    )


def short(value: float) -> str:
    """Return a number in four digits."""
    return f"{value:.4g}"


def over_seeds(frame: pd.DataFrame, axes: Iterable[str]) -> pd.DataFrame:
    """Return a sweep's table with one row for all seeds of a combination: of each figure the mean and the range."""
    names = list(dict.fromkeys(["strategy", *axes]))
    if SEED not in names:
        return frame
    names.remove(SEED)
    rows = []
    for values, of_seeds in frame.groupby(names, sort=False):
        row = dict(zip(names, values, strict=True))
        for figure in of_seeds.columns.drop([*names, SEED]):
            cells = of_seeds[figure].tolist()
            are_numbers = all(isinstance(cell, int | float) and cell == cell for cell in cells)
            row[figure] = mean_and_range(cells, short) if are_numbers else " or ".join(dict.fromkeys(map(str, cells)))
        rows.append(row)
    return pd.DataFrame(rows)


def global_batch(run: Run) -> int | None:
    """Return the samples of a step of all workers together; None if it is not known."""
    options, trained = run.options, workers(run.table)
    if (given := options.get("global_batch_size")) is not None:
        return int(given)
    return options["batch_size"] * trained["rank"].nunique() if "batch_size" in options else None


def note_on_batches(batches: Sequence[tuple[str, int | None]]) -> str:
    """Return one line if runs, given by strategy and samples of a step, take batches of several sizes; else ""."""
    names: dict[int, dict[str, None]] = {}
    for name, batch in batches:
        if batch is not None:
            names.setdefault(batch, {})[name] = None
    if len(names) < 2:
        return ""
    sizes = "; ".join(f"{batch} in {', '.join(names[batch])}" for batch in sorted(names))
    return (
        f"The runs take different numbers of steps: samples of all workers a step are {sizes}. "
        f"Give all of them --global_batch_size {max(names)}."
    )
