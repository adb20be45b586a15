"""Bring everything that shows the results up to date with them: notebooks, media/, and the tables in the READMEs.

python experiments/report.py                                   # of the results in the repository
python experiments/report.py --results_dir results/HARDWARE    # of your own

What shows an experiment with missing runs stays as it is. Reads nothing but the results. Needs pip install -e '.[dev]'.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gradwire.ending import end_while_loading

FINISHED = "what was finished is written"
if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    end_while_loading(FINISHED)

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from experiments import cases, draw_measured, draw_virtual, drawing, measured, tables
from experiments.cases import COMPARED, FAMILY, RING_TRACE, Setup
from experiments.draw_measured import overview, scaling, timelines
from experiments.grid import KEPT, ROOT
from experiments.measured import CLUSTER, EXPERIMENTS, WHOLE, Results, comparison
from experiments.text_cases import SELDOM, TEXT
from experiments.virtual_cases import CODED
from gradwire.command_line import parse, run_command
from gradwire.core.records.atomic import write_atomically
from gradwire.core.records.errors import RunFailed, UsageError
from media import draw_ring

NOTEBOOKS = tuple(sorted((ROOT / "experiments").glob("*.ipynb")))
TABLES = {ROOT / "README.md": cases.TELLING, ROOT / "experiments" / "README.md": cases.TABLE}
PICTURES: dict[str, Callable[[Any], Figure]] = {  # the summary of each experiment, which stands in media/
    "param_server": partial(overview, compared=cases.SERVER, sent=cases.SERVERS),
    "ring_all_reduce": partial(overview, compared=cases.RING, sent=cases.TRAFFIC),
    "scaling": scaling, FAMILY: draw_measured.servers, CLUSTER: draw_virtual.cluster,
    CODED: draw_virtual.summary, WHOLE: draw_virtual.family, TEXT: draw_virtual.text,
    SELDOM: draw_virtual.seldom,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What is reported."""

    results_dir: str = str(KEPT)
    """The folder with the results."""


def experiments_of(notebook: Path) -> list[str]:
    """Return the experiments whose results a notebook shows: those that it loads."""
    source = notebook.read_text(encoding="utf-8")
    return re.findall(r'measured\.(?:comparison|simulated)\(\\"(\w+)\\"\)', source) or [FAMILY]


def execute(notebook: Path, results_dir: Path) -> str:
    """Return the text of the notebook with the outputs that it has on these results. Raises RunFailed."""
    import nbformat  # here, for it takes seconds to load
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    node = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(notebook.parent)}}
    client = NotebookClient(node, timeout=300, kernel_name="python3", resources=where, coalesce_streams=True)
    try:
        client.execute(env=os.environ | {"EXPERIMENT_RESULTS": str(results_dir.resolve())})
    except CellExecutionError as error:
        raise RunFailed(f"{notebook.name}: {error.ename}: {error.evalue}") from error
    for cell in node.cells:
        cell.metadata.pop("execution", None)  # when each cell ran is no result
    return nbformat.writes(node) + "\n"


def with_table(text: str, results: Results, shown: Sequence[Setup]) -> str:
    """Return a Markdown text with the table of some setups, and the provenance, between its two marks."""
    table = tables.markdown(tables.comparison(results, shown))
    provenance = measured.provenance(results).replace("\n", "\n    ")
    return tables.replace_marked(text, "results", f"{table}\n\n    {provenance}")


def complete(folder: Path) -> list[str]:
    """Return the experiments that were measured, after a line about each other one. Raises UsageError if none was."""
    names = [path.stem for path in folder.glob("*.json") if path.stem in EXPERIMENTS]
    if any('"dataset": "digits"' in (folder / f"{name}.json").read_text(encoding="utf-8") for name in names):
        raise UsageError(
            f"--results_dir {folder}: these are quick runs, for trying out; to look at them, start a notebook with "
            f"EXPERIMENT_RESULTS={folder.resolve()}"
        )
    lacking = {name: absent for name, experiment in EXPERIMENTS.items() if (absent := experiment.missing(folder))}
    if len(lacking) == len(EXPERIMENTS):
        raise UsageError(
            f"--results_dir {folder}: no experiment is complete; runs such as {next(iter(lacking.values()))[0]} are "
            f"missing; make them with python experiments/run.py all --results_dir {folder}"
        )
    for name, absent in lacking.items():
        print(
            f"{name}: {len(absent)} runs are missing, such as {absent[0]}; what shows it stays as it is. "
            f"python experiments/run.py {name} makes them", file=sys.stderr,
        )  # fmt: skip
    return [name for name in EXPERIMENTS if name not in lacking]


def main(settings: Settings) -> None:
    """Write the notebooks, the pictures and the tables. Raises UsageError if no results are complete, RunFailed."""
    folder, media = Path(settings.results_dir), ROOT / "media"
    there = set(complete(folder))
    jobs: dict[Path, Callable[[], Figure | str]] = {
        path: partial(execute, path, folder) for path in NOTEBOOKS if there.issuperset(experiments_of(path))
    }
    for name in there.intersection(PICTURES):
        jobs[media / f"{name}.png"] = partial(lambda name: PICTURES[name](measured.load(name, folder)), name)
    if {"param_server", "ring_all_reduce"} <= there:
        jobs[media / "timelines.png"] = partial(timelines, folder)
    if set(COMPARED) <= there:
        results = comparison(directory=folder)
        jobs |= {path: partial(with_table, path.read_text("utf-8"), results, shown) for path, shown in TABLES.items()}
    bar = tqdm(jobs.items())
    for path, make in bar:
        bar.set_description(str(path.relative_to(ROOT)))
        shown = make()
        if isinstance(shown, Figure):
            drawing.save(shown, path)
            continue
        with write_atomically(path) as temporary:
            temporary.write_text(shown, encoding="utf-8")
    if "ring_all_reduce" in there:
        draw_ring.animate(folder / RING_TRACE, media / "ring_all_reduce.gif")
    if folder.resolve() != KEPT:
        print(f"The text of the README and of the notebooks is about {KEPT.name}; correct what differs.")


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(parse(sys.argv[1:], Settings, __doc__)), FINISHED))
