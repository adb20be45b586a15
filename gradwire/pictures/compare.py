"""Print finished runs side by side, with the options that differ: `python -m gradwire compare RESULTS_DIR/*.json`."""

import shutil
import textwrap
from collections.abc import Sequence

from gradwire.core.records.tables import aligned, finished_epochs, number, scores, staleness, totals, workers
from gradwire.pictures.finished import RUNS, Run, command, differing_options, find_runs, shortened
from gradwire.pictures.seeds import global_batch, groups, name_of, note_on_batches, summarize

BEFORE = ("strategy", "n_gpus", "epochs")
AFTER = (
    "seconds", "samples/s", "MB sent", "MB to evaluate", "peak MB", "threads", "waiting %", "staleness", "identical",
)  # fmt: skip
_WIDEST_VALUE = 26  # a mean and a range


def compare(runs: Sequence[Run], width: int) -> str:
    """Return the runs as a table, one run a row, in the order given; none of its lines is longer than `width`.

    Columns are those of BEFORE, the scores, those of AFTER, then the options that differ; a column that is empty for
    all runs is left out. Where they do not fit, the table continues below with the names of the runs. waiting: the
    share of the workers' time; staleness: of the gradients, mean and maximum in versions; identical: the replicas at
    the end; peak MB: of the rank with the most memory, where it was counted. Runs that differ in the seed only are one
    row, of means and ranges. A line below says whether the runs take batches of different sizes.
    """
    alike = groups(runs)
    cells = [_of_seeds([_row(run) for run in group]) for group in alike]
    scored = dict.fromkeys(name for row in cells for name in row if name not in (*BEFORE, *AFTER))
    columns = {name: [row.get(name, "-") for row in cells] for name in (*BEFORE, *scored, *AFTER)}
    for name, values in differing_options(runs).items():
        of_run = dict(zip([run.path for run in runs], values, strict=True))
        columns[f"--{name}"] = [",".join(dict.fromkeys(of_run[run.path] for run in group)) for group in alike]
    names = ["run", *_names([name_of(group) for group in alike], max(width // 3, 8))]
    room = max(width - max(map(len, names)) - 2, 8)
    shown = [
        [shortened(name, room), *(shortened(value, min(room, _WIDEST_VALUE)) for value in values)]
        for name, values in columns.items()
        if set(values) != {"-"}
    ]
    tables: list[list[list[str]]] = []
    for column in shown:
        if not tables or max(map(len, _lines([*tables[-1], column]))) > width:
            tables.append([names])
        tables[-1].append(column)
    text = "\n\n".join("\n".join(_lines(table)) for table in tables)
    note = note_on_batches([(str(run.table["strategy"].iloc[0]), global_batch(run)) for run in runs])
    return f"{text}\n\n{textwrap.fill(note, width)}" if note else text


def _of_seeds(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    return {name: summarize([row.get(name, "-") for row in rows]) for name in rows[0]}


def _lines(columns: Sequence[Sequence[str]]) -> list[str]:
    left = 2 if columns[1][0] == BEFORE[0] else 1
    return aligned(list(zip(*columns, strict=True)), left).split("\n")


def _names(names: Sequence[str], width: int) -> list[str]:
    """Return the names, no two alike: where shortening makes them so, with a number."""
    short = [shortened(name, width) for name in names]
    if len(set(short)) == len(short):
        return short
    digits = len(str(len(names)))
    return [f"{i:>{digits}} {shortened(name, width - digits - 1)}" for i, name in enumerate(names, 1)]


def _row(run: Run) -> dict[str, str]:
    table, identical = run.table, run.metadata.get("replicas_identical")
    numbers, trained = totals(table), workers(table)
    stale, stalest = staleness(table)
    threads = list((run.metadata.get("threads") or {}).values())  # of each rank: the least and the most are shown
    peaks = [of["peak"] for of in (run.metadata.get("memory") or {}).values()]
    waiting = trained["wait_s"].sum(min_count=1) / trained["epoch_s"].sum()
    before = (str(table["strategy"].iloc[0]), str(table["n_gpus"].iloc[0]), str(finished_epochs(table)))
    after = (
        number(numbers["seconds"], 2),
        number(numbers["samples_per_s"]),
        number(numbers["bytes_sent"], scale=1e-6),
        number(numbers["evaluate_bytes"], scale=1e-6),
        number(max(peaks, default=None), scale=1e-6),
        " to ".join(str(n) for n in dict.fromkeys((min(threads), max(threads)))) if threads else "-",
        number(waiting, scale=100),
        f"{number(stale)}, {number(stalest, 0)}" if stale >= 0 else "-",
        "-" if identical is None else "yes" if identical else "no",
    )
    scored = {name.replace("_", " "): number(numbers[name], 4) for name in scores(table)}
    return dict(zip(BEFORE, before, strict=True)) | scored | dict(zip(AFTER, after, strict=True))


main = command(
    "compare", "Print finished runs side by side.", RUNS,
    lambda given: compare(find_runs(given.paths, given.last), shutil.get_terminal_size().columns),
)  # fmt: skip
