"""The processes that run a student's functions: one for all cases in virtual time, and then one a rank.

The launcher of every run starts and ends them. One that takes too long writes where it is, and ends itself.
"""

import faulthandler
import io
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

import torch

from gradwire.core.launchers import launch, preload
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import PeerLost, Transport
from lessons.judge import RANK, draw
from lessons.lab import Case, Fault, Lab, Run, counted, first
from lessons.labs import LABS
from lessons.points import judged_right, parts_right
from lessons.sandbox import forbid_processes
from lessons.source import Source
from lessons.values import is_spoiled

_COMPUTING_S = 8.0  # of a processor, for the student's code in one case, or order: a right solution needs some tenths
_LONGEST_S = 60.0  # for code that sleeps, or waits for what never comes; a loaded machine may take 20 times as long
_ORDERS_S = 30.0  # of a processor, for the judge in all orders: solutions need at most 3
_SILENT_S = 90.0  # for one that was stopped
_MOST_PRINTED = 2000  # characters
_NAME = "your code"
_ORDERS = "one of all orders of a small case"
_SPOILED = "; NaN is what received.vector holds after its release: use it inside the with block, or copy it"

preload("lessons.processes")


class Begins(NamedTuple):
    """Reported when something that runs the student's code begins, named in words; when it has ended, with ""."""

    what: str


class Played(NamedTuple):
    """What comes of all cases: the last run, the fault in it, and what the judge has not tried, in words."""

    run: Run
    fault: Fault | None = None
    left_out: str = ""
    right: tuple[str, ...] = ()  # the functions that are right
    parts: Mapping[str, float] = {}  # of those that are not: their right parts, as shares of the lab


class OutOfTime(BaseException):
    """The judge has no time left. No Exception, which a search of all orders would take for a rank's."""


def play_apart(lab: Lab, source: Source, tell: Callable[[str], None]) -> tuple[Played, str]:
    """Play all cases of a lab in a process, up to the first fault; `tell` how each has gone.

    Returns what has come of it, the last run without messages and results if the process has not come to an end; and
    what the student's code has printed. Raises RunFailed.
    """
    runs: list[Run] = []
    printed: list[str] = []
    now = ""
    found: Played | None = None

    def on_report(_: int, news: Run | Begins | Played | str) -> None:
        nonlocal now, found
        match news:
            case str():
                printed.append(news)
            case Played():
                found = news
            case Begins():
                now = news.what
                if now == _ORDERS:
                    tell("right, all orders: ")
            case Run():
                tell(("right, " if runs else "") + f"{counted(news.case.n, 'rank')}: ")
                runs.append(news)

    try:
        (played,) = _launch(lab, source, on_report)
    except Fault as ended:
        fault = Fault(ended.kind, f"{now}: {ended}" if now else str(ended))
        played = found or Played(runs[-1], fault, right=judged_right(lab, runs[-1].case))
    return played, "".join(printed)


def play_cases(
    lab: Lab, source: Source, report: Callable[[Run | Played], None], begin: Callable[[str], None] = lambda what: None
) -> Played:
    """Play all cases, then a small one in all orders, up to the first fault, and cases of other functions behind it.

    Report each case before it is played, and the first fault. Each rank loads the functions for itself, so that none
    sees another's globals. `begin` is called with a description whenever the student's code begins to run, and
    with "" when it has ended.
    """
    yours: list[SimpleNamespace] = []
    cases = (*lab.cases, lab.scored)
    for i, case in enumerate(cases):
        run = draw(lab, case)
        report(run)
        if fault := _play(lab, source, yours, run, begin):
            right = judged_right(lab, case)
            played = Played(run, fault, "", right, parts_right(lab, run, fault, right))
            report(played)
            if fault.kind not in ("import", "missing"):
                played = played._replace(right=_also_right(lab, source, yours, cases[i:], right, begin))
            return played
    begun = time.process_time()

    def load() -> SimpleNamespace:
        if time.process_time() - begun > _ORDERS_S:
            raise OutOfTime
        begin(_ORDERS)
        return source.load(lab.functions)

    found, left_out = None, ""
    try:
        found = lab.in_all_orders(load)
    except OutOfTime:
        left_out = "the judge ran out of time before it had tried all orders"
    begin("")
    if found and found.counterexample:
        text = f"right in these runs, but not in every order: {found.counterexample.text()}"
        return Played(run, Fault("orders", text), right=judged_right(lab, run.case))
    return Played(run, left_out=left_out)


def _play(
    lab: Lab, source: Source, yours: list[SimpleNamespace], run: Run, begin: Callable[[str], None]
) -> Fault | None:
    """Play one case by the functions of each rank, which are loaded for those that have none; return the fault."""
    try:
        begin("import of your functions")
        for rank in range(len(yours), run.case.n):
            RANK.set(rank)
            yours.append(source.load(lab.functions))
        begin(str(run.case))
        lab.play(yours, run, source)
        wrong = first(lab.examine(yours, run))
        begin("")
        if wrong := wrong or first(lab.find_faults(run)):
            is_nan = any(is_spoiled(vector) for result in run.results for vector in result.values())
            raise Fault("wrong", wrong + _SPOILED * is_nan + source.explain_new_tensor(lab.changed, wrong))
        if run.damage:
            raise Fault("damage", run.damage)
    except Fault as fault:
        return fault
    finally:
        begin("")
    return None


def _also_right(lab: Lab, source: Source, yours: list[SimpleNamespace], cases: Sequence[Case], right: Sequence[str],
                begin: Callable[[str], None]) -> tuple[str, ...]:  # fmt: skip
    """Return which functions are right, also by those of these cases that are for others than the first one's."""
    wrong = {lab.function_of(cases[0]), ""}
    if type(lab).in_all_orders is not Lab.in_all_orders:
        wrong.add(lab.whole)  # what only some orders find cannot be said here
    if lab.function_of(cases[0]) == "":
        return tuple(right)  # all of them take part in the case
    apart = [case for case in cases[:-1] if not case.until and lab.function_of(case) not in wrong]
    with redirect_stdout(None), redirect_stderr(None):  # what it prints has been shown
        for case in apart:
            if lab.function_of(case) not in wrong and _play(lab, source, yours, draw(lab, case), begin):
                wrong.add(lab.function_of(case))
    found = {lab.function_of(case) for case in apart} - wrong
    return tuple(name for name in lab.functions if name in found or name in right)


def play_on_processes(lab: Lab, source: Source) -> Fault | None:
    """Run the lab's case for processes, in which nothing is counted; return what is wrong. Raises RunFailed."""
    run, begin = draw(lab, lab.real), f"right in virtual time, but on {lab.real.n} real processes"
    try:
        results = _launch(lab, source, lambda *_: None, run)
    except Fault as ended:
        results = [ended]
    faults = [result for result in results if isinstance(result, Fault)]
    if faults:
        fault = min(faults, key=lambda fault: fault.kind == "lost")  # a rank lost its peer by another's fault
        return Fault("real", f"{begin}: {str(fault).removeprefix(f'{run.case}: ')}")
    run.results = results
    if first(lab.find_faults(run)):
        return Fault("real", f"{begin} the results differ: is something changed that is still being sent, or kept "
                             "after its release?")  # fmt: skip
    return None


def _launch(lab: Lab, source: Source, on_report: Callable[[int, Any], None], real: Run | None = None) -> list[Any]:
    """Return what `_run` returns, in one process or one a rank. Raises Fault if one crashes or hangs, RunFailed."""
    n = real.case.n if real else 1
    with tempfile.NamedTemporaryFile(prefix="lesson-") as trace:
        try:
            return launch(_run, n, (trace.name, _COMPUTING_S), lab.name, source, real,
                          timeout=_SILENT_S, roles=[_NAME] * n, on_report=on_report)  # fmt: skip
        except RunFailed as error:
            text = trace.read().decode(errors="replace")
            how = str(error).partition("\n")[0].partition(f"({_NAME}) ")[2]
            if not (text or how):
                raise  # no process was started
    if not text:
        raise Fault("died", f"{_NAME}: its process {how}")
    frames = re.findall(r'File "(.*)", line (\d+)', text)
    at = next((f" at {source.place(*frame)}" for frame in frames if frame[0] in source.texts), "")
    raise Fault("loop", f"{_NAME} does not come to an end{at}: an endless loop?")


# In the processes


def _run(transport: Transport, report: Callable[[Any], None], limit: tuple[str, float], lab_name: str, source: Source,
        real: Run | None) -> Any:  # fmt: skip
    """Run all cases, or one rank of a real run, whose Fault it returns; end this process if that takes too long."""
    torch.set_num_threads(1)  # for short vectors more of them cost more than they help
    lab, printed, (path, seconds) = LABS[lab_name], _Printed(report), limit
    with open(path, "a") as trace, redirect_stdout(printed), redirect_stderr(printed):
        begin = _Limit(trace, seconds, report).begin
        forbid_processes()  # where that is possible: nothing that is judged needs them
        if not real:
            return play_cases(lab, source, report, begin)
        begin(str(real.case))
        try:
            return lab.run(source.load(lab.functions), transport, real.case, real.inputs[transport.rank])
        except PeerLost as error:
            return Fault("lost", str(error))
        except BaseException as error:
            return source.explain(error, f"{real.case}: rank {transport.rank}")
        finally:
            begin("")


class _Limit:
    """Ends this process if the student's code takes too long, when it has written to `trace` which line it runs.

    The time in which it has no processor does not count, unless it is very long: the machine may be busy.
    """

    def __init__(self, trace: IO[str], seconds: float, report: Callable[[Any], None]) -> None:
        self._seconds, self._report, self._what = seconds, report, ""
        for number in (signal.SIGPROF, signal.SIGALRM):
            faulthandler.register(number, trace, chain=True)  # which then ends the process

    def begin(self, what: str) -> None:
        """Let `what`, in words, take the whole time from here on; without words, anything take any time."""
        signal.setitimer(signal.ITIMER_PROF, self._seconds if what else 0)
        signal.setitimer(signal.ITIMER_REAL, _LONGEST_S if what else 0)
        if what != self._what:
            self._what = what
            self._report(Begins(what))


class _Printed(io.TextIOBase):
    """A stream that reports what the student prints, each line with its rank, up to a limit."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report, self._left, self._begins = report, _MOST_PRINTED, True

    def write(self, text: str) -> int:
        if text and self._left > 0:
            mark = f"rank {RANK.get()} printed: "
            lines = text[:_MOST_PRINTED].splitlines(keepends=True)
            marked = "".join(mark * (i > 0 or self._begins) + line for i, line in enumerate(lines))
            self._begins = text.endswith("\n")
            more = "\n(and more; print less)\n" if len(marked) >= self._left else ""
            self._report(marked[: self._left] + more)
            self._left -= len(marked)
        return len(text)
