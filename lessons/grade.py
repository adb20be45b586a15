"""Grade a class: python -m lessons.grade ring SUBMISSIONS --csv grades.csv

`all` in place of `ring` grades every lab. Each folder and each .py file in SUBMISSIONS is one student's; of a folder
the lab's NAME.py is graded, or the only file that defines the lab's functions. Writes the grades, and beside them a
page with the drawings. Verdicts are kept as they come: the same command continues one that was ended, and judges again
what has changed or exceeded a limit. Who uses solutions or strategies, or hides what it uses, is flagged; a person
decides. Linux keeps submissions from files that are not theirs; where it has no Landlock, no verdict is kept.
"""

import sys

if __name__ == "__main__":
    from gradwire.ending import end_while_loading
    from lessons.early import refuse, require_folder, require_labs

    refuse(require_labs, require_folder)
    end_while_loading("nothing was graded")  # what follows takes seconds to load

import csv
import html
import json
import os
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Annotated, NamedTuple

import matplotlib.figure  # noqa: F401 - here, for judges are forked: pages have drawings
import torch
from tqdm import tqdm
from tyro.conf import Positional, arg

from gradwire.command_line import parse, run_command
from gradwire.core.records.atomic import check_output, check_writable, write_atomically, write_together
from gradwire.core.records.errors import RunFailed, UsageError, between, one_line
from lessons.check import SOLUTIONS, check_file, find_lab
from lessons.contained import Contained, adopt_orphans, end_below
from lessons.early import require_folder
from lessons.lab import Fault, Lab
from lessons.labs import LABS
from lessons.report import Report
from lessons.sandbox import forbid_files, landlock_version
from lessons.submissions import find_file, find_flags, key_of, refuse_links

_TICK_S = 0.1
_DEVICES = (Path("/dev/null"), Path("/dev/shm"))  # which every judge writes to
_STYLE = """body{font-family:sans-serif} td,th{padding:.2em .6em;text-align:left;vertical-align:top}
pre,p{overflow-wrap:anywhere} pre{white-space:pre-wrap}"""
_HEADER = ("name", "lab", "points", "kind", "first mistake", "flags")


@dataclass(frozen=True)
class Settings:
    """What is graded, by which limits, and where the grades go."""

    lab: Annotated[str, Positional, arg(metavar="LAB")]
    """The lab's name, or all."""
    submissions: Annotated[str, Positional, arg(metavar="SUBMISSIONS")]
    """The folder with a folder or a .py file for each student."""
    csv: str = "grades.csv"
    """The grades. Beside them are the page, .html, and the verdicts, .verdicts."""
    jobs: int = os.cpu_count() or 1
    """How many are judged at the same time."""
    seconds: float = 120.0
    """The most that one may take; a right one takes some seconds."""
    megabytes: float = 4000.0
    """The most memory that one may use."""
    processes: int = 64
    """The most processes and threads that one may have; a right one has about twenty."""

    @property
    def written(self) -> tuple[Path, Path, Path]:
        """The grades, the page, and the folder of the verdicts."""
        table = Path(self.csv).resolve()
        return table, table.with_suffix(".html"), table.with_suffix(".verdicts")


class Task(NamedTuple):
    """One lab of one submission; `kept` is where its verdict is kept."""

    lab: Lab
    submission: Path
    kept: Path


class Verdict(NamedTuple):
    """The kept part of a report: the cells of the grades, its part of the page, and the seconds that judging took."""

    cells: list[str]
    html: str
    seconds: float | None = None  # of one that an earlier version has kept


def verdict_of(task: Task, report: Report, flags: Sequence[str] = ()) -> Verdict:
    """Return the verdict of a report. Its cells are safe for terminals and spreadsheets: no escapes, no formulas."""
    first = report.verdict.partition("\n")[0]
    name = task.submission.name.removesuffix(".py")
    cells = [name, task.lab.name, str(report.points), report.kind, first, "; ".join(flags)]
    cells = ["".join(c if c.isprintable() else " " for c in cell) for cell in cells]
    cells = [f"'{cell}" if cell.lstrip().startswith(("=", "+", "-", "@")) else cell for cell in cells]
    return Verdict(cells, report._repr_html_())


def confine(task: Task, settings: Settings) -> None:
    """Keep this process from the grades, and from other submissions, where the kernel can."""
    if landlock_version():
        hidden = [task.submission.parent, *settings.written]
        forbid_files(hidden, [task.submission], [Path.cwd(), *_DEVICES])


def hide_solutions(task: Task) -> None:
    """Keep this process from the solutions, where the kernel can."""
    if landlock_version():
        forbid_files([SOLUTIONS], [task.submission])


def judge(task: Task, settings: Settings) -> bytes:
    """Return the verdict on a submission as JSON."""
    flags: list[str] = []
    try:
        refuse_links(task.submission)
        confine(task, settings)
        alone = settings.lab != "all"
        file = find_file(task.lab, task.submission, alone)
        flags = find_flags(task.lab, file, task.submission)
        report = check_file(task.lab.name, str(file))
    except Fault as fault:
        report = Report(task.lab, fault.kind, str(fault))
    except Exception as error:  # a machine without memory, a file that cannot be read
        report = Report(task.lab, "failed", f"could not be judged: {one_line(error)}")
    return json.dumps(verdict_of(task, report, flags)).encode()


def grade(tasks: Sequence[Task], settings: Settings) -> Generator[tuple[Task, Verdict]]:
    """Judge submissions, several at a time, and yield each verdict as it comes. Closed, it ends those under way."""
    torch.set_num_threads(1)  # a process that has used more cannot be forked
    adopt_orphans()
    waiting, running, again = deque(tasks), dict[Task, Contained](), set[Task]()
    try:
        while waiting or running:
            while waiting and len(running) < settings.jobs:
                task = waiting.popleft()
                calls = partial(judge, task, settings), partial(hide_solutions, task)
                running[task] = Contained(*calls, settings.seconds, settings.megabytes, settings.processes)
            time.sleep(_TICK_S)
            for task in [task for task, call in running.items() if call.has_ended()]:
                ended = running.pop(task)
                end_below([contained.pid for contained in running.values()])
                if ended.exceeded:
                    verdict = verdict_of(task, Report(task.lab, "limit", f"your code {ended.exceeded}"))
                    yield task, verdict._replace(seconds=ended.seconds)
                elif result := ended.result():
                    yield task, Verdict(*json.loads(result))._replace(seconds=ended.seconds)
                elif task not in again:
                    again.add(task)
                    waiting.append(task)
                else:
                    why = "could not be judged: what judges it was killed, twice"
                    yield task, verdict_of(task, Report(task.lab, "failed", why))
    finally:
        end_below()


def find_submissions(folder: Path) -> list[Path]:
    """Return the submissions in a folder, in the order of their names. Raises UsageError."""
    require_folder(str(folder))
    found = dict[str, Path]()
    for path in sorted(folder.iterdir()):
        if path.name[0] in "._" or not (path.is_dir() or (path.is_file() and path.suffix == ".py")):
            print(f"{path.name!r}: left out, it is neither a folder nor a .py file", file=sys.stderr)
        elif (other := found.setdefault(path.name.removesuffix(".py"), path)) != path:
            raise UsageError(f"{path}: has the name of {other.name}; rename one")
    if not found:
        raise UsageError(f"{folder}: no submission is in it; give the folder with one for each student")
    return [*found.values()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade; return 0 if every submission could be judged, 1 if not, 2 after bad usage, 128 + signal."""
    kinds: list[str] = []

    def work() -> None:
        settings = parse(sys.argv[1:] if arguments is None else arguments, Settings, __doc__ or "")
        try:
            kinds.extend(verdict.cells[3] for verdict in grade_class(settings, *check_settings(settings)))
        except OSError as error:
            raise RunFailed(f"{error.filename or settings.csv}: {error.strerror or error}") from error

    return run_command(work, "verdicts are kept; the same command continues") or int("failed" in kinds)


def check_settings(settings: Settings) -> tuple[list[Path], list[Lab]]:
    """Return the submissions and the labs; check all settings before anything is judged. Raises UsageError."""
    if sys.platform != "linux":
        raise UsageError("lessons.grade: needs Linux, whose kernel tells which processes a submission has started")
    every = [*LABS.values()]  # loaded before judges are forked, which look whose a file is
    labs = every if settings.lab == "all" else [find_lab(settings.lab)]
    for option in ("jobs", "seconds", "megabytes", "processes"):
        between(settings, option, 1)
    table, page, kept = settings.written
    submissions = find_submissions(Path(settings.submissions).resolve())
    try:
        if table.suffix != ".csv":
            raise OSError("its name must end with .csv")
        check_output(table)
        check_output(page)
        check_writable(kept)
    except OSError as error:
        raise UsageError(f"--csv {settings.csv}: cannot be written: {error.strerror or error}") from error
    return submissions, labs


def grade_class(settings: Settings, submissions: Sequence[Path], labs: Sequence[Lab]) -> list[Verdict]:
    """Judge what has no verdict yet, write the grades, and return all verdicts."""
    (table, page, kept), verdicts = settings.written, dict[Task, Verdict]()
    tasks = [
        Task(lab, submission, kept / f"{key_of(lab, submission)}.json") for submission in submissions for lab in labs
    ]
    are_safe = landlock_version() > 0
    if are_safe:
        verdicts = {task: Verdict(*json.loads(task.kept.read_text())) for task in tasks if task.kept.exists()}
    else:
        print("no verdict is kept: this kernel has no Landlock, and a submission could write it", file=sys.stderr)
    if verdicts:
        print(f"{len(verdicts)} of {len(tasks)} have a verdict already, in {kept}", flush=True)
    left = [task for task in tasks if task not in verdicts]
    tqdm.set_lock(RLock())  # one of several processes would need a process of its own, which would be ended as theirs
    with (
        tqdm(total=len(tasks), initial=len(verdicts), unit="submission", leave=False, disable=None) as bar,
        closing(grade(left, settings)) as found,
    ):
        for task, verdict in found:
            verdicts[task] = verdict
            name, lab, points, kind, first, flags = verdict.cells
            if are_safe and kind not in ("failed", "limit"):
                with write_atomically(task.kept) as path:
                    path.write_text(json.dumps(verdict))
            bar.write(f"{name}  {lab}  {points:>3}  {first}{flags and f'; FLAGGED: {flags}'}")
            sys.stdout.flush()
            bar.update()
    in_order = [verdicts[task] for task in tasks]
    with write_together([table, page]) as (rows, text_of_page):
        with open(rows, "w", newline="", encoding="utf-8") as file:
            seconds = ("" if verdict.seconds is None else f"{verdict.seconds:.1f}" for verdict in in_order)
            cells = ([*verdict.cells, took] for verdict, took in zip(in_order, seconds, strict=True))
            csv.writer(file).writerows([[*_HEADER, "seconds"], *cells])
        text_of_page.write_text(page_of(in_order), encoding="utf-8", errors="replace")
    average = sum(int(verdict.cells[2]) for verdict in in_order) / len(in_order)
    print(f"{len(in_order)} graded, {average:.1f} points on average: {table}, {page}")
    return in_order


def page_of(verdicts: Sequence[Verdict]) -> str:
    """Return the page: the table, and below it each report with its drawing."""
    rows, details = ["".join(f"<th>{name}" for name in _HEADER)], []
    for i, verdict in enumerate(verdicts):
        name, *cells = map(html.escape, verdict.cells)
        rows.append(f'<td><a href="#r{i}">{name}</a>' + "".join(f"<td>{cell}" for cell in cells))
        details.append(f'<h2 id="r{i}">{name}, {cells[0]}</h2><p>{cells[-1]}</p>{verdict.html}')
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Grades</title><style>{_STYLE}</style>'
    return "\n".join([head, "<h1>Grades</h1><table>", *(f"<tr>{row}" for row in rows), "</table>", *details])


if __name__ == "__main__":
    sys.exit(main())
