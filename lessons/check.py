"""Check what a student wrote: python -m lessons.check ring my_ring.py

Runs the functions of a lab on ranks in virtual time, for several numbers of ranks and lengths, some labs' in all orders
of a small case, then once on real processes. Prints what is wrong first, or the score. In a notebook: from
lessons.check import check; check("ring", all_reduce).
"""

import pickle
import sys

if __name__ == "__main__":
    from contextlib import suppress

    from lessons.early import find_hole, refuse, require_file, require_lab

    refuse(require_lab, require_file)
    if len(sys.argv) == 3 and (hole := find_hole(*sys.argv[1:])):
        print(hole)
        sys.exit(1)

    from gradwire.core.records.interrupts import interrupts_wait
    from gradwire.ending import end_while_loading

    end_while_loading("nothing was written")  # what follows takes seconds to load, in which Ctrl-C may come
    from gradwire.core.launchers import preload, warm_up
    from gradwire.core.launchers.sockets import remove_folder
    from gradwire.core.records.errors import RunFailed, UsageError

    end_while_loading("nothing was written", remove_folder)
    if len(sys.argv) > 2:
        print("loading PyTorch", file=sys.stderr, flush=True)
        preload(f"lessons.labs.{sys.argv[1]}")
    preload("lessons.processes")
    preload("torch._dynamo")  # which torch's optimizers load
    with interrupts_wait(), suppress(UsageError, RunFailed):  # which the first start of a rank says again
        warm_up()  # the fork server loads torch while this process does

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from gradwire.command_line import parse, run_command
from gradwire.core.records.atomic import check_output, write_together
from gradwire.core.records.errors import RunFailed, UsageError, one_line
from lessons.early import require_file, require_lab
from lessons.judge import REFERENCES
from lessons.lab import Fault, Lab, Run, first
from lessons.labs import LABS
from lessons.points import OF_OTHERS, best_of, judged_right
from lessons.processes import play_apart, play_on_processes
from lessons.report import Report, picture_bytes
from lessons.source import Source
from lessons.submissions import find_file

SOLUTIONS = Path(__file__).parent / "solutions"
KINDS = (".png", ".svg", ".pdf")


def check(lab: str, *functions: Callable[..., Any]) -> Report:
    """Judge functions of a notebook, in the order in which the lab names them; show the report as the cell's result.

    Raises UsageError if there is no such lab, or it has another number of functions.
    """
    chosen = find_lab(lab)
    if len(functions) != len(chosen.functions):
        raise UsageError(f"check({lab!r}, {', '.join(chosen.functions)}): {len(functions)} functions were given")
    named = dict(zip(chosen.functions, functions, strict=True))
    try:
        source = Source.of_cells(named)
    except Exception as error:  # whatever the pickling of a student's objects raises
        raise UsageError(f"check({lab!r}): the function uses what cannot be sent: {one_line(error)}") from error
    return judge(chosen, source)


def check_file(lab: str, path: str, tell: Callable[[str], None] = lambda text: None) -> Report:
    """Judge the functions that a file defines, or that of a folder which is the lab's; `tell` how far this is.

    Raises UsageError if there is no such lab, or no such file.
    """
    chosen = find_lab(lab)
    require_file(path)
    try:
        source = Source.of_file(find_file(chosen, Path(path), alone=True))
    except Fault as fault:
        return Report(chosen, fault.kind, str(fault))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    return judge(chosen, source, tell)


def find_lab(name: str) -> Lab:
    """Return a lab. Raises UsageError."""
    require_lab(name)
    return LABS[name]


def judge(lab: Lab, source: Source, tell: Callable[[str], None] = lambda text: None) -> Report:
    """Run all cases, that of the score, and that on real processes, until the first fault; `tell` how each has gone."""
    played, printed = play_apart(lab, source, tell)
    run, fault, left_out, right, parts = played
    if not fault:
        tell(f"right, {lab.real.n} real processes: ")
        fault, right = play_on_processes(lab, source), judged_right(lab, lab.real)
    tell("not yet right\n" if fault else "right\n")
    reference = run_solution(lab, run)
    if fault:
        verdict = f"{fault}{first(lab.comment(fault.kind, run))}"
        begun = best_of(lab, run.case, right, parts)
        return Report(lab, fault.kind, verdict, (), run, reference, printed, right, begun)
    figures = lab.figures(run, reference)
    missed = [figure for figure in figures if not figure.is_best]
    kind, verdict = "right", "right, and as good as is known"
    if missed:
        other = lab.is_other(run)
        kind, verdict = "costly", f"right, but not the best. {other}{lab.advise(run, missed)}"
        parts = {"the results": OF_OTHERS} if other else {}
    if left_out:
        verdict = f"{verdict}; {left_out}"
    return Report(lab, kind, verdict, figures, run, reference, printed, (), parts)


def run_solution(lab: Lab, run: Run) -> Run:
    """Return the run of the reference solution on the same inputs."""
    if REFERENCES.exists():
        kept: Run = pickle.loads((REFERENCES / f"{lab.name}.pickle").read_bytes())[run.case]
        return replace(kept, inputs=run.inputs)
    solution = import_module(f"lessons.solutions.{lab.name}")
    return lab.play([solution] * run.case.n, Run(run.case, run.inputs), Source())


@dataclass(frozen=True)
class Settings:
    """What is checked, and what is written."""

    lab: Annotated[str, Positional, arg(metavar="LAB")]
    """The lab's name."""
    file: Annotated[str, Positional, arg(metavar="FILE")]
    """The file with your functions."""
    json: str = ""
    """Write the scores here."""
    gradescope: str = ""
    """Write here what Gradescope reads, its results.json."""
    picture: str = ""
    """Write here the picture of the messages: .png, .svg or .pdf."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a file; return 0 if its functions are right, 1 if they are not, 2 after bad usage, 128 + signal."""
    right = False

    def work() -> None:
        nonlocal right
        settings = parse(sys.argv[1:] if arguments is None else arguments, Settings, __doc__ or "")
        check_outputs(settings)
        report = check_file(settings.lab, settings.file, lambda text: print(text, end="", file=sys.stderr, flush=True))
        print(report)
        write(settings, report)
        right = report.right

    return run_command(work, "nothing was written") or (0 if right else 1)


def check_outputs(settings: Settings) -> None:
    """Find what cannot be written before anything is run. Raises UsageError."""
    if settings.picture and Path(settings.picture).suffix not in KINDS:
        raise UsageError(f"--picture {settings.picture}: must end with {', '.join(KINDS)}")
    taken = {Path(settings.file).resolve(): "your file"}
    for option in ("json", "gradescope", "picture"):
        path = getattr(settings, option)
        if not path:
            continue
        try:
            check_output(path)
        except OSError as error:
            raise UsageError(f"--{option} {path}: cannot be written: {error.strerror or error}") from error
        if (other := taken.setdefault(Path(path).resolve(), f"--{option}")) != f"--{option}":
            raise UsageError(f"--{option} {path}: is {other}; give another name")


def write(settings: Settings, report: Report) -> None:
    """Write what was asked for: all of it or nothing. Without a message there is no picture, which is said."""
    contents = {settings.json: report.as_json().encode(), settings.gradescope: report.as_gradescope().encode()}
    if settings.picture and report.picture is not None:
        contents[settings.picture] = picture_bytes(report.picture, Path(settings.picture).suffix[1:])
    elif settings.picture:
        print(f"no picture in {settings.picture}: nothing was sent")
    contents.pop("", None)
    try:
        with write_together([Path(path) for path in contents]) as temporaries:
            for temporary, content in zip(temporaries, contents.values(), strict=True):
                temporary.write_bytes(content)
    except OSError as error:
        raise RunFailed(f"cannot write {error.filename or 'the scores'}: {error.strerror or error}") from error


if __name__ == "__main__":
    sys.exit(main())
