"""Bring everything that shows the results up to date with them: notebooks, media/, and the table in the README.

python experiments/report.py                                   # of the results in the repository
python experiments/report.py --results_dir results/HARDWARE    # of your own

Executes the notebooks in place, draws the figures with the notebooks' code, the timelines and the animation from the
recorded events, and writes the README's table. Reads nothing but the results. Needs what requirements-dev.txt lists.
"""

import signal
import sys

FINISHED = "what was finished is written"
if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    signal.signal(
        signal.SIGINT, lambda *_: (print(f"\nerror: ended by SIGINT; {FINISHED}", file=sys.stderr), sys.exit(130))
    )

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import nbformat
from matplotlib.figure import Figure
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import cases, collect, family, family_plots, ring_animation
from experiments.collect import KEPT, ROOT, Results
from experiments.family_runs import FAMILY
from experiments.recorded import is_there
from experiments.run import RING_TRACE
from experiments.runs import TIMELINE, declared
from records.errors import RunFailed, UsageError
from records.files import EVENTS_SUFFIX, write_atomically
from training.command_line import guarded, parse

NOTEBOOKS = tuple(sorted((ROOT / "experiments").glob("*.ipynb")))
_TABLE = re.compile(r"(<!-- results: [^>]*-->\n).*?(<!-- end of results -->)", re.DOTALL)
_LIMIT_S = 300  # for one cell of a notebook
_DPI = 100


@dataclass(frozen=True)
class Settings:
    """What is reported."""

    results_dir: str = str(KEPT)
    """The folder with the results."""


def execute(notebook: Path, results_dir: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs that it has on these results. Raises RunFailed."""
    node = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(notebook.parent)}}
    client = NotebookClient(node, timeout=_LIMIT_S, kernel_name="python3", resources=where)
    try:
        client.execute(env=os.environ | {"EXPERIMENT_RESULTS": str(results_dir.resolve())})
    except CellExecutionError as error:
        raise RunFailed(f"{notebook.name}: {error.ename}: {error.evalue}") from error
    for cell in node.cells:
        cell.metadata.pop("execution", None)  # when each cell ran is no result
    return node


def with_table(readme: str, results: Results) -> str:
    """Return the text of the README with the table of these results, and their provenance, between its two marks."""
    table = cases.markdown(cases.table(results, cases.TABLE))
    provenance = collect.provenance(results).replace("\n", "\n    ")
    text, n = _TABLE.subn(lambda found: f"{found[1]}\n{table}\n\n    {provenance}\n\n{found[2]}", readme)
    assert n == 1, "the README has one place for the table"
    return text


def complete(folder: Path) -> Results:
    """Return the results of all declared runs. Raises UsageError if one is missing."""
    runs = [replace(one, results_dir=str(folder)) for one in declared("all")]
    # Of one device or the other; `collect.load` refuses a mixture.
    absent = [one for one in runs if not any(is_there(replace(one, device=device)) for device in ("cpu", "cuda"))]
    missing = [str(one.run_name) for one in absent]
    events = [f"{one.run_name}{EVENTS_SUFFIX}" for one in runs if str(one.run_name).startswith(TIMELINE)]
    missing += [name for name in (*events, RING_TRACE) if not (folder / name).exists()]
    missing += family.missing(folder / FAMILY)
    if missing and any(folder.rglob("*-quick.json")):
        raise UsageError(
            f"--results_dir {folder}: these are quick runs, for trying out; to look at them, start a notebook with "
            f"EXPERIMENT_RESULTS={folder.resolve()}"
        )
    if missing:
        raise UsageError(
            f"--results_dir {folder}: {len(missing)} runs are missing or damaged, such as {missing[0]}; "
            f"make them with python experiments/run.py all --results_dir {folder}"
        )
    return collect.load(folder)


def main(settings: Settings) -> None:
    """Write the notebooks, the pictures and the table. Raises UsageError if results are missing, RunFailed."""
    folder = Path(settings.results_dir)
    results = complete(folder)
    media, readme = ROOT / "media", ROOT / "README.md"
    jobs: dict[str, Callable[[], None]] = {path.name: partial(_notebook, path, folder) for path in NOTEBOOKS}
    for name, draw in cases.FIGURES.items():
        jobs[f"{name}.png"] = partial(_picture, partial(draw, results), media / f"{name}.png")
    jobs[f"{FAMILY}.png"] = partial(
        _picture, lambda: family_plots.summary(family.load(folder)), media / f"{FAMILY}.png"
    )
    jobs["timelines.png"] = partial(_picture, partial(cases.timelines, folder), media / "timelines.png")
    jobs["ring_all_reduce.gif"] = partial(ring_animation.animate, folder / RING_TRACE, media / "ring_all_reduce.gif")
    jobs["README.md"] = lambda: _text(readme, with_table(readme.read_text(encoding="utf-8"), results))
    bar = tqdm(jobs.items())
    for name, job in bar:
        bar.set_description(name)
        job()
    if folder.resolve() != KEPT:
        print(f"The sentences in the README and in the notebooks are about {KEPT.name}; mend what is no longer so.")


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
