"""Runs a student's functions once on real processes that share memory, each with a `Transport`."""

from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from lessons.judge import draw, unpacked
from lessons.lab import UNREADABLE, Fault, Lab, Run
from lessons.patience import Patience
from lessons.processes import Process, Ranks, loop
from lessons.rank import Source

_SILENT_S = 1.5  # how long all may compute, or wait for each other: what they do has ended in virtual time before


def run_on_processes(lab: Lab, source: Source) -> Run:
    """Return a run of the lab's case for processes; what was sent in it is not counted. Raises Fault, RunFailed."""
    case = lab.real
    run = draw(lab, case)
    with Ranks(lab, source, real=True) as ranks:
        try:
            processes = ranks.start(case.n)
            ranks.patience = Patience(_SILENT_S, _SILENT_S)
            for process in processes:
                process.answer((process.rank, case, run.inputs[process.rank]))
            results = _gather(ranks, processes)
            run.results = [dict(unpacked(one["vectors"], one["payload"])) for _, one in sorted(results.items())]
        except Fault as fault:
            text = str(fault).removeprefix(f"{case}: ")
            raise Fault("real", f"right in virtual time, but on {case.n} real processes: {text}") from None
        except UNREADABLE as error:
            text = f"on {case.n} real processes a rank ended with what is no result ({type(error).__name__})"
            raise Fault("forged", text) from error
    return run


def _gather(ranks: Ranks, processes: list[Process]) -> dict[int, dict[str, Any]]:
    """Return the result of each rank. Raises the Fault that came first, but for those who lost a peer by it."""
    results: dict[int, dict[str, Any]] = {}
    lost: Fault | None = None
    silent = list(processes)
    while silent:
        pipes = [one.pipe for one in silent]
        if not ranks.patience.wait(partial(_is_any_ready, pipes), [one.pid for one in silent]):
            if lost is not None:
                raise lost
            lines = {process.rank: process.find_line(ranks.source) for process in silent}
            rank = next((rank for rank, line in lines.items() if line), silent[0].rank)  # others may wait for it
            raise loop(rank, lines[rank])
        for process in [one for one in silent if one.has_spoken(0)]:
            try:
                request = process.next(ranks.source, ranks.patience)
            except Fault as fault:
                if "raised PeerLost" not in str(fault):
                    raise
                lost = lost or fault
                silent.remove(process)
                continue
            if request["what"] == "result":
                results[process.rank] = request
                silent.remove(process)
    if lost is not None:
        raise lost
    return results


def _is_any_ready(pipes: list[Connection], seconds: float) -> bool:
    return bool(wait(pipes, seconds))
