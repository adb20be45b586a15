"""Bring everything that shows the results up to date with them: notebooks, media/, and the tables in the READMEs.

python experiments/report.py                                   # of the results in the repository
python experiments/report.py --results_dir results/HARDWARE    # of your own

Executes the notebooks in place, draws the figures with the notebooks' code, the timelines and the animation from the
recorded events, and writes the tables. What shows an experiment with missing runs stays as it is. Reads
nothing but the results. Needs pip install -e '.[dev]'.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from records.interrupts import end_while_loading

FINISHED = "what was finished is written"
if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    end_while_loading(FINISHED)

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import nbformat
from matplotlib.figure import Figure
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tqdm import tqdm

from experiments import (
    cases,
    cluster,
    cluster_plots,
    collect,
    compression,
    compression_plots,
    family,
    family_plots,
    ring_animation,
    whole_family,
    whole_plots,
)
from experiments.cluster import CLUSTER
from experiments.collect import KEPT, ROOT, Results
from experiments.family_runs import FAMILY
from experiments.run import CLUSTER_EXPERIMENT, CODED_EXPERIMENT, EVERY, RING_TRACE, WHOLE_EXPERIMENT
from experiments.runs import EXPERIMENTS, TIMELINE, Case, declared
from experiments.store import Store
from experiments.whole_family import WHOLE
from records.errors import RunFailed, UsageError
from records.files import EVENTS_SUFFIX, write_atomically
from training.command_line import guarded, parse

NOTEBOOKS = tuple(sorted((ROOT / "experiments").glob("*.ipynb")))
TABLES = {ROOT / "README.md": cases.TELLING, ROOT / "experiments" / "README.md": cases.TABLE}
_TABLE = re.compile(r"(<!-- results: [^>]*-->\n).*?(<!-- end of results -->)", re.DOTALL)
_LIMIT_S = 300  # for one cell of a notebook
_DPI = 100


@dataclass(frozen=True)
class Settings:
    """What is reported."""

    results_dir: str = str(KEPT)
    """The folder with the results."""


def experiment_of(notebook: Path) -> str:
    """Return the experiment whose results a notebook shows: it says so in its first code cell."""
    source = notebook.read_text(encoding="utf-8")
    if "whole_family.load()" in source:
        return WHOLE_EXPERIMENT
    if "compression.load()" in source:
        return CODED_EXPERIMENT
    if "cluster.load()" in source:
        return CLUSTER_EXPERIMENT
    return next((name for name in EXPERIMENTS if f'collect.load(\\"{name}\\")' in source), FAMILY)


def execute(notebook: Path, results_dir: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs that it has on these results. Raises RunFailed."""
    node = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(notebook.parent)}}
    client = NotebookClient(node, timeout=_LIMIT_S, kernel_name="python3", resources=where, coalesce_streams=True)
    try:
        client.execute(env=os.environ | {"EXPERIMENT_RESULTS": str(results_dir.resolve())})
    except CellExecutionError as error:
        raise RunFailed(f"{notebook.name}: {error.ename}: {error.evalue}") from error
    for cell in node.cells:
        cell.metadata.pop("execution", None)  # when each cell ran is no result
    return node


def with_table(text: str, results: Results, shown: Sequence[Case]) -> str:
    """Return a Markdown text with the table of some cases, and the provenance, between its two marks."""
    table = cases.markdown(cases.table(results, shown))
    provenance = collect.provenance(results).replace("\n", "\n    ")
    text, n = _TABLE.subn(lambda found: f"{found[1]}\n{table}\n\n    {provenance}\n\n{found[2]}", text)
    assert n == 1, "there is one place for the table"
    return text


def missing(folder: Path, experiment: str) -> list[str]:
    """Return the names of the runs and files that an experiment lacks in `folder`. Raises UsageError."""
    store = Store.load(folder, experiment)
    if experiment == FAMILY:
        return family.missing(store)
    runs = declared(experiment)
    # Of one device or the other; `collect.load` refuses a mixture.
    absent = [one for one in runs if not any(store.has(replace(one, device=device)) for device in ("cpu", "cuda"))]
    files = [f"{one.run_name}{EVENTS_SUFFIX}" for one in runs if str(one.run_name).startswith(TIMELINE)]
    files += [RING_TRACE] if experiment == "ring_all_reduce" else []
    return [str(one.run_name) for one in absent] + [name for name in files if not (folder / name).exists()]


def complete(folder: Path) -> list[str]:
    """Return the experiments that were measured, after a line about each other one. Raises UsageError if none was."""
    lacking = {experiment: missing(folder, experiment) for experiment in EVERY}
    measured = [experiment for experiment, names in lacking.items() if not names]
    simulated = {
        CLUSTER_EXPERIMENT: [] if cluster.is_measured(folder) else [CLUSTER],
        CODED_EXPERIMENT: compression.missing(folder),
        WHOLE_EXPERIMENT: [] if whole_family.is_measured(folder) else [WHOLE],
    }
    lacking |= simulated
    if not measured and any(name.endswith("-quick") for name in Store.load(folder, EVERY[0]).metadata):
        raise UsageError(
            f"--results_dir {folder}: these are quick runs, for trying out; to look at them, start a notebook with "
            f"EXPERIMENT_RESULTS={folder.resolve()}"
        )
    if not measured:
        raise UsageError(
            f"--results_dir {folder}: no experiment is complete; such runs are missing as {lacking[EVERY[0]][0]}; "
            f"make them with python experiments/run.py all --results_dir {folder}"
        )
    for experiment, names in lacking.items():
        if names:
            print(
                f"{experiment}: {len(names)} runs are missing, such as {names[0]}; what shows it stays as it is. "
                f"python experiments/run.py {experiment} makes them",
                file=sys.stderr,
            )
    return measured + [experiment for experiment, names in simulated.items() if not names]


def main(settings: Settings) -> None:
    """Write the notebooks, the pictures and the tables. Raises UsageError if no results are complete, RunFailed."""
    folder = Path(settings.results_dir)
    measured, media = complete(folder), ROOT / "media"
    jobs: dict[str, Callable[[], None]] = {
        path.name: partial(_notebook, path, folder) for path in NOTEBOOKS if experiment_of(path) in measured
    }
    for name in measured:
        jobs[f"{name}.png"] = partial(_picture, partial(figure, name, folder), media / f"{name}.png")
    if {"param_server", "ring_all_reduce"} <= set(measured):
        jobs["timelines.png"] = partial(_picture, partial(cases.timelines, folder), media / "timelines.png")
    if "ring_all_reduce" in measured:
        gif = "ring_all_reduce.gif"
        jobs[gif] = partial(ring_animation.animate, folder / RING_TRACE, media / gif)
    if set(EXPERIMENTS) <= set(measured):
        results = collect.load(directory=folder)
        for path, shown in TABLES.items():
            jobs[str(path.relative_to(ROOT))] = partial(_table, path, results, shown)
    bar = tqdm(jobs.items())
    for name, job in bar:
        bar.set_description(name)
        job()
    if folder.resolve() != KEPT:
        print(f"The sentences in the README and in the notebooks are about {KEPT.name}; correct what differs.")


def figure(experiment: str, folder: Path) -> Figure:
    """Return the summary of an experiment, which stands in media/."""
    if experiment == CLUSTER_EXPERIMENT:
        return cluster_plots.scaling(cluster.load(folder))
    if experiment == WHOLE_EXPERIMENT:
        return whole_plots.summary(whole_family.load(folder))
    if experiment == CODED_EXPERIMENT:
        return compression_plots.summary(compression.load(folder))
    if experiment == FAMILY:
        return family_plots.summary(family.load(folder))
    return cases.FIGURES[experiment](collect.load(experiment, directory=folder))


def _table(path: Path, results: Results, shown: Sequence[Case]) -> None:
    _text(path, with_table(path.read_text(encoding="utf-8"), results, shown))


def _notebook(path: Path, folder: Path) -> None:
    _text(path, nbformat.writes(execute(path, folder)) + "\n")


def _picture(draw: Callable[[], Figure], path: Path) -> None:
    with write_atomically(path) as temporary:
        draw().savefig(temporary, dpi=_DPI)


def _text(path: Path, text: str) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(parse(sys.argv[1:], Settings, __doc__)), FINISHED))
