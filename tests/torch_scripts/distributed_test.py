"""torch's own tests of process groups, each with three ranks: on gloo, on the virtual cluster, and on the backend
gradwire, whose groups then take the place of gloo's.

    python -m tests.torch_scripts.distributed_test [--backend virtual] [names...]

prints how each ends; without names it also writes the outcomes of all to distributed_test.csv. Each test has a process
of its own, or with real ranks three, forked from one that has loaded torch.
"""

import argparse
import multiprocessing
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pandas as pd
import torch
import torch.distributed.distributed_c10d as c10d

from gradwire.backend.registration import make_group
from gradwire.core.records.errors import RunFailed
from tests.torch_scripts import SCRIPTS, run_script

TABLE = Path(__file__).with_suffix(".csv")
CASE = str(SCRIPTS / "distributed_case.py")
RANKS, BACKENDS = 3, ("gloo", "virtual", "gradwire")
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
LIMIT_S, OTHERS_S = 60.0, 5.0  # of a test, and of the ranks that are left where one has failed


def load_suite(folder: str) -> list[str]:
    """Load torch's suite, whose module reads the environment; return the names of its tests."""
    os.environ |= {"BACKEND": "gloo", "INIT_METHOD": f"file://{folder}/first",
                   "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
                   "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}  # fmt: skip
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    return sorted(name for name in vars(DistributedTest._DistTestBase) if name.startswith("test_"))


def run_case(name: str, backend: str) -> str:
    """Return how a test ends: passed, skipped, or what went wrong, in a line."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "test_dir").mkdir()
        os.environ["TEMP_DIR"] = folder
        started = [partial(_run_virtual, folder, name)]
        if backend != "virtual":
            started = [partial(_run_rank, folder, name, backend, rank) for rank in range(RANKS)]
        says = _run_forked(started, Path(folder))
        return says or (SKIPPED if (Path(folder) / "skipped").exists() else PASSED)


def _run_virtual(folder: str, name: str) -> None:
    run_script(CASE, folder, name, n=RANKS)


def _run_rank(folder: str, name: str, backend: str, rank: int) -> None:
    os.environ["RANK"] = str(rank)
    if backend == "gradwire":
        c10d.Backend._plugins["GLOO"] = c10d.Backend._BackendPlugin(make_group, False)
    sys.argv = [CASE, folder, name]
    runpy.run_path(CASE, run_name="__main__")


def _run_forked(functions: Sequence[Callable[[], None]], folder: Path) -> str:
    """Run each function in a process; return what the first that failed says of it."""
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_note, args=(function, folder, i), daemon=True) for i, function in enumerate(functions)
    ]
    for process in processes:
        process.start()
    left: dict[Any, Any] = {process.sentinel: process for process in processes}
    until = perf_counter() + LIMIT_S
    while left and (ready := wait(list(left), max(0.0, until - perf_counter()))):
        if any(left.pop(sentinel).exitcode for sentinel in ready):  # for which others may wait for ever
            until = min(until, perf_counter() + OTHERS_S)
    for process in left.values():
        process.kill()
    for process in processes:
        process.join()
    failed = [i for i, process in enumerate(processes) if process.exitcode not in (0, -signal.SIGKILL)]
    for i in failed[:1]:
        says = folder / f"{i}.error"
        return says.read_text() if says.exists() else f"exits with {processes[i].exitcode}"
    return f"takes more than {LIMIT_S:g} s" if left else ""


def _note(function: Callable[[], None], folder: Path, i: int) -> None:
    """Call a function, with its output in a file, and leave what it raises in another."""
    torch.set_num_threads(1)
    with open(folder / f"{i}.output", "w") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        try:
            function()
        except BaseException as error:
            traceback.print_exc()
            if isinstance(error, SystemExit) and not error.code:
                return
            lines = [line for line in str(error).splitlines() if line.strip()]
            text = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {(lines or [''])[0]}"
            (folder / f"{i}.error").write_text(text)
            sys.exit(1)


def main(given: Sequence[str] | None = None) -> int:
    """Run the tests that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, help="only this")
    parser.add_argument("names", nargs="*", help="of tests; default: all, whose outcomes are written")
    options = parser.parse_args(given)
    with TemporaryDirectory() as folder:
        rows: list[dict[str, Any]] = []
        for name in [*(options.names or load_suite(folder))]:
            if options.names:
                load_suite(folder)
            row = {"test": name}
            for backend in [options.backend] if options.backend else BACKENDS:
                begun = perf_counter()
                row[backend] = run_case(name, backend)
                print(f"{backend:8} {name}: {row[backend]} ({perf_counter() - begun:.1f} s)", flush=True)
            rows.append(row)
    table = pd.DataFrame(rows).set_index("test")
    if not options.names:
        table = table.where(table.isin([PASSED, SKIPPED]), FAILED)
        kept = pd.read_csv(TABLE, index_col="test") if TABLE.exists() else pd.DataFrame(index=table.index)
        kept.reindex(table.index).assign(**table).to_csv(TABLE)
    for backend, outcomes in table.items():
        print(f"{backend}: {(outcomes == PASSED).sum()} of {len(table)} pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
