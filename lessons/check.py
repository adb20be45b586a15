"""Check what a student wrote: python -m lessons.check ring my_ring.py

Runs the functions of a lab on ranks in virtual time, for several numbers of ranks and lengths, then once on real
processes. Prints what is wrong first, or the score. In a notebook: from lessons.check import check; check("ring",
all_reduce).
"""

import sys

if __name__ == "__main__":
    from contextlib import suppress

    from records.interrupts import end_while_loading, interrupts_wait

    end_while_loading("nothing was written")  # what follows takes seconds to load, in which Ctrl-C may come
    from launchers import preload, warm_up
    from launchers.sockets import remove_folder
    from records.errors import RunFailed, UsageError

    end_while_loading("nothing was written", remove_folder)
    preload("lessons.labs")
    preload("torch._dynamo")  # which torch's optimizers load
    with interrupts_wait(), suppress(UsageError, RunFailed):  # which the first start of a rank says again
        warm_up()  # the fork server loads torch while this process does

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cloudpickle
from tyro.conf import Positional

from launchers import launch
from lessons.judge import draw, play
from lessons.lab import Case, Fault, Lab, Run, Vectors
from lessons.labs import LABS
from lessons.processes import Ranks
from lessons.rank import Source
from lessons.report import Report, picture_bytes
from lessons.spoiled import is_spoiled
from records.errors import RunFailed, UsageError, nearest, one_line
from records.files import check_writable, write_atomically
from training.command_line import guarded, parse
from transports.base import Transport

SOLUTIONS = Path(__file__).parent / "solutions"
REAL_LIMIT_S = 2.0  # that one rank may compute in the run on real processes, however busy the machine is
WAIT_LIMIT_S = 30.0  # for each wait in it
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
        source = Source(by_value=cloudpickle.dumps(named))
    except Exception as error:  # whatever the pickling of a student's objects raises
        raise UsageError(f"check({lab!r}): the function uses what cannot be sent: {one_line(error)}") from error
    return judge(chosen, source)


def check_file(lab: str, path: str) -> Report:
    """Judge the functions that a file defines. Raises UsageError if there is no such lab, or no such file."""
    chosen = find_lab(lab)
    if not Path(path).is_file():
        raise UsageError(f"{path}: there is no such file; give the file with your functions")
    return judge(chosen, Source(path=str(Path(path).resolve())))


def find_lab(name: str) -> Lab:
    """Return a lab. Raises UsageError."""
    if name not in LABS:
        raise UsageError(f"{name}: there is no such lab; {nearest(name, LABS)}there are {', '.join(LABS)}")
    return LABS[name]


def judge(lab: Lab, source: Source) -> Report:
    """Run all cases, that of the score, and that on real processes, until the first fault."""
    seen: Run | None = None
    printed = ""
    try:
        with Ranks(lab, source) as ranks:
            try:
                for case in (*lab.cases, lab.scored):
                    seen = draw(lab, case)
                    play(ranks, seen)
                    if not _is_right(lab, seen):
                        raise Fault("wrong", lab.explain(seen, run_solution(lab, seen)) + _about_spoiled(seen))
                    if seen.damage:
                        raise Fault("damage", seen.damage)
            finally:
                printed = ranks.printed
        run_on_processes(lab, source)
    except Fault as fault:
        assert seen is not None
        reference = run_solution(lab, seen)
        return Report(
            lab, fault.kind, f"{fault}{lab.comment(fault.kind, seen, reference)}", (), seen, reference, printed
        )
    assert seen is not None
    figures = tuple(lab.figures(seen))
    missed = [one for one in figures if not one.is_best]
    verdict = f"right, but not the best. {lab.advise(seen, missed)}" if missed else "right, and as good as is known"
    return Report(lab, "costly" if missed else "right", verdict, figures, seen, run_solution(lab, seen), printed)


def _is_right(lab: Lab, run: Run) -> bool:
    try:
        return lab.is_right(run)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:  # no rank ends with such by itself
        raise Fault(
            "forged", f"{run.case}: the lab cannot read what the ranks ended with: {one_line(error)}"
        ) from error


def _about_spoiled(run: Run) -> str:
    if not any(is_spoiled(vector) for result in run.results for vector in result.values()):
        return ""
    return "; NaN is what received.vector holds after its release: use it inside the with block, or copy it"


def run_solution(lab: Lab, run: Run) -> Run:
    """Return the run of the reference solution on the same inputs."""
    with Ranks(lab, Source(path=str(SOLUTIONS / f"{lab.name}.py"))) as ranks:
        return play(ranks, Run(run.case, run.inputs))


def run_on_processes(lab: Lab, source: Source) -> None:
    """Run the functions once on processes that share memory, with a `Transport`. Raises Fault."""
    case = lab.real
    run = draw(lab, case)
    where = f"on {case.n} real processes"
    try:
        run.results = launch(_be_real, case.n, lab.name, source, case, run.inputs, timeout=WAIT_LIMIT_S)
    except RunFailed as error:
        said = str(error).splitlines()[0].partition(": if a step")[0].replace(" (worker)", "")
        if " raised Fault: " in said:  # what the lab has found is a line for itself
            said = said.partition(" raised Fault: ")[2].partition("; meanwhile")[0]
        said = said.replace("was killed by SIGPROF", f"has not returned within {REAL_LIMIT_S:g} s of computing")
        raise Fault("real", f"right in virtual time, but {where}: {said}") from error
    if not _is_right(lab, run):
        raise Fault("real", f"right in virtual time, but {where} the results are others: is something changed that is "
                            "still being sent, or kept after its release?")  # fmt: skip


def _be_real(transport: Transport, lab_name: str, source: Source, case: Case, inputs: Sequence[Vectors]) -> Vectors:
    """Be one rank, in a process that is killed if it does not return: no `except` of the student's catches that."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, REAL_LIMIT_S)
    silent = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # what it prints was shown already
        os.dup2(silent, number)
    lab = LABS[lab_name]
    result = lab.run(source.load(lab.functions), transport, case, inputs[transport.rank])
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {name: vector.clone() for name, vector in result.items()}


@dataclass(frozen=True)
class Settings:
    """What is checked, and what is written."""

    lab: Annotated[str, Positional]
    """The lab's name."""
    file: Annotated[str, Positional]
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
        report = check_file(settings.lab, settings.file)
        print(report)
        write(settings, report)
        right = report.right

    return guarded(work, "nothing was written") or (0 if right else 1)


def check_outputs(settings: Settings) -> None:
    """Find what cannot be written before anything is run. Raises UsageError."""
    for option in ("json", "gradescope", "picture"):
        path = getattr(settings, option)
        try:
            if path:
                check_writable(Path(path).parent)
        except OSError as error:
            raise UsageError(f"--{option} {path}: cannot be written: {error.strerror or error}") from error
    if settings.picture and Path(settings.picture).suffix not in KINDS:
        raise UsageError(f"--picture {settings.picture}: must end with {', '.join(KINDS)}")


def write(settings: Settings, report: Report) -> None:
    """Write what was asked for. Without a message there is no picture, which is said."""
    picture = report.picture if settings.picture else None
    files = {settings.json: report.as_json().encode(), settings.gradescope: report.as_gradescope().encode()}
    if picture is not None:
        files[settings.picture] = picture_bytes(picture, Path(settings.picture).suffix[1:])
    elif settings.picture:
        print(f"no picture in {settings.picture}: nothing was sent")
    for path, content in files.items():
        if path:
            with write_atomically(path) as temporary:
                temporary.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
