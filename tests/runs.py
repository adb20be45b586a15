"""Small runs of the main job, and what they leave: for the tests of several rooms."""

import contextlib
import io
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from gradwire import Options, command_line, run
from gradwire.baselines.fully_sharded_builtin import BuiltinFullySharded
from gradwire.baselines.param_server_builtin import BuiltinParamServer
from gradwire.baselines.ring_all_reduce_builtin import BuiltinRingAllReduce
from gradwire.core.records.errors import UsageError
from gradwire.core.records.interrupts import INTERRUPTS
from gradwire.names import make_strategy
from strategies import STRATEGIES, RunSize, Strategy
from tests.ranks import LIMIT

ROOT = Path(__file__).parent.parent
N_TRAIN = 190  # samples of `moons`
SMALL: dict[str, Any] = {
    "dataset": "tests.workload:moons", "model": "tests.workload:linear", "epochs": 2, "batch_size": 16,
    "device": "cpu", "timeout": LIMIT, "run_name": "run",
}  # fmt: skip


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Return the command line of these options, without those that are None."""
    words = [[f"--{name}"] + [str(value)] * (value is not True) for name, value in options.items() if value is not None]
    return list(chain(*words))


SMALL_ARGUMENTS = arguments(SMALL)
TRUSTED = arguments({name: SMALL[name] for name in ("dataset", "model")})
"""The code that records of small runs name, which is not in the current folder."""
BUILTIN: dict[str, type[Strategy]] = {
    kind.name: kind for kind in (BuiltinFullySharded, BuiltinParamServer, BuiltinRingAllReduce)
}
KINDS: dict[str, type[Strategy]] = {**STRATEGIES, **BUILTIN}


def strategy_of(name: str, **options: Any) -> Strategy:
    """Return a strategy of the table, or a built-in one, with its own options."""
    return BUILTIN[name](**options) if name in BUILTIN else make_strategy(name, **options)


WITHOUT_CHANCE = {"backup_workers": {"n_backup": 0}}  # with backups, the order of arrival decides
SYNCHRONOUS: dict[str, Strategy] = {
    name: strategy_of(name, **WITHOUT_CHANCE.get(name, {}))
    for name, kind in KINDS.items()
    if not kind.traits.asynchronous
}


def n_gpus_of(name: str, workers: int) -> int:
    """Return how many ranks a strategy has with so many workers."""
    kind = KINDS[name]
    return 1 if kind.traits.ranks[1] == 1 else workers + kind().roles(8).count("server")


def small(folder: Path, strategy: str | Strategy = "ring_all_reduce", **changes: Any) -> Options:
    """Return the options of a run of a moment."""
    made = strategy_of(strategy) if isinstance(strategy, str) else strategy
    return Options(strategy=made, **(SMALL | {"results_dir": str(folder)} | changes))


def made(folder: Path, strategy: str | Strategy, name: str = "run", **changes: Any) -> dict[str, Any]:
    """Make such a run; return its metadata."""
    run(small(folder, strategy, run_name=name, **changes), quiet=True)
    return metadata(folder, name)


def metadata(folder: Path, name: str = "run") -> dict[str, Any]:
    """Return what is recorded of a run."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Give this process its handlers of signals back after the block, in which a command has set its own."""
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def said(*arguments: str, builtin: Strategy | None = None, encoding: str = "utf-8") -> tuple[int, str]:
    """Give the arguments to the command line, in this process; return the exit code and what was printed."""
    return said_by(lambda: command_line.main(arguments, builtin, "description"), encoding)


def said_by(work: Callable[[], int], encoding: str = "utf-8") -> tuple[int, str]:
    """Call `work`, which returns an exit code as the command line does; return it and what was printed."""
    output = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output), handlers_kept():
        try:
            code = work()
        except SystemExit as stop:  # --help
            code = int(stop.code or 0)
    return code, output.buffer.getvalue().decode(encoding)


def _needs_memory(kind: type[Strategy]) -> bool:
    """Whether the strategy, with its defaults, refuses runs whose ranks share no memory."""
    try:
        kind().check(RunSize(4, 3, 4, shared_memory=False))
    except UsageError:
        return True
    return False


IN_MEMORY = {name for name, kind in STRATEGIES.items() if _needs_memory(kind)}  # of all ranks
