"""An entry of the scoreboard: a strategy of the table, or one file of the user's, loaded anew for each rank of a run.

Ranks in virtual time share a process. So that they share nothing but messages, each has the module of the entry for
itself, and a copy of what it receives.
"""

import dataclasses
import inspect
import sys
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from launchers.launcher import Job, Launcher
from records.errors import RunFailed, UsageError, unknown
from records.machine import name_of
from scoreboards.rules import check_file, options_in
from strategies import STRATEGIES, RunSize, Strategy
from strategies.common.builtin import Builtin
from training.loop import train_rank
from transports.messages import Work
from virtual_time.in_place import InPlace
from virtual_time.launcher import VirtualTime
from virtual_time.transport import Simulated
from workloads.lookup import blamed_on

RANKS = 8


def takes_part(kind: type[Strategy]) -> bool:
    """Return whether a strategy of the table is an entry: on eight machines, it sends something."""
    made = kind()
    try:
        made.check(RunSize(RANKS, made.count_workers(RANKS), 1000, shared_memory=False))
    except UsageError:  # it needs shared memory, which machines have not
        return False
    return (kind.traits.ranks[1] or RANKS) >= RANKS and made.cost().worker.messages != "0"


ENTRIES = [name for name, kind in STRATEGIES.items() if takes_part(kind)]


class Apart(Simulated):
    """A rank whose messages leave its memory when they are sent."""

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        work, nbytes = super()._send(value, dst, tag, n, sent)
        if isinstance(work, InPlace) and work._message is not None and work._message.tensor is not None:
            work._message.tensor = work._message.tensor.clone()
        return work, nbytes


@dataclass(frozen=True)
class Entry:
    """A strategy by its name, or yourmodule:YourClass, and its options on each cluster, as on a command line."""

    name: str
    file: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is the user's, which may share something."""
        return ":" in self.name

    @property
    def lines(self) -> int:
        """The lines of its file."""
        return len(Path(self.file).read_text(encoding="utf-8").splitlines())

    def load(self) -> type[Strategy]:
        """Return the class, of the one module that all may share."""
        if not self.is_own:
            return STRATEGIES[self.name]
        module, _, name = self.name.partition(":")
        if getattr(sys.modules.get(module), "__file__", None) != self.file:
            sys.modules[module] = _execute(module, self.file)
        return _class_in(sys.modules[module], name, self.name)

    def afresh(self) -> type[Strategy]:
        """Return the class, of a module of its own."""
        if not self.is_own:
            return STRATEGIES[self.name]
        module, _, name = self.name.partition(":")
        return _class_in(_execute(module, self.file), name, self.name)

    def apart(self, launcher: Launcher, time: VirtualTime) -> Launcher:
        """Return the launcher whose ranks share nothing."""
        time.member = Apart
        return dataclasses.replace(launcher, launch=lambda job: time.run(self._for_each(job)))

    def _for_each(self, job: Job) -> Job:
        return dataclasses.replace(job, work=partial(_train_afresh, self))


def _train_afresh(entry: Entry, transport: Any, report: Any, orders: Any, data: Any) -> Any:
    own = orders.options.strategy
    values = {option.name: getattr(own, option.name) for option in dataclasses.fields(own)}
    options = dataclasses.replace(orders.options, strategy=entry.afresh()(**values))
    return train_rank(transport, report, dataclasses.replace(orders, options=options), data)


def _execute(name: str, file: str) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(name, module)  # where dataclasses look for types
    with blamed_on(f"{name}: importing {file}"):
        spec.loader.exec_module(module)
    return module


def _class_in(module: ModuleType, name: str, entry: str) -> type[Strategy]:
    found = getattr(module, name, None)
    if not (inspect.isclass(found) and issubclass(found, Strategy)) or issubclass(found, Builtin):
        raise UsageError(f"{entry}: {module.__file__} has no class {name} derived from strategies.Strategy; define it")
    return found


def find(name: str, options: dict[str, str] | None = None) -> Entry:
    """Return the entry of this name; `options`: those that are kept. Raises UsageError, RunFailed if it is refused."""
    if ":" not in name:
        if name not in ENTRIES:
            raise unknown("entry", name, ENTRIES, "yourmodule:YourClass")
        return Entry(name, str(inspect.getsourcefile(STRATEGIES[name])), options or {})
    module, _, _ = name.partition(":")
    sys.path[:0] = [folder for folder in [str(Path.cwd())] if folder not in sys.path]
    spec = find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise UsageError(f"{name}: there is no file {module}.py; put it into the current directory")
    check_file(Path(spec.origin))
    return Entry(name, spec.origin, options_in(Path(spec.origin)))


def place_of(entry: Entry) -> str:
    """Return how records name the file of an entry."""
    return name_of(entry.file)


def refuse_sharing(entry: Entry, place: str, shared: str, apart: str) -> None:
    """Check that a run whose ranks may share something has the same bits as one where they cannot. Raises RunFailed."""
    if shared != apart:
        raise RunFailed(
            f"{entry.name}, {place}: its ranks share what no message carries: with a module of its own for each, and "
            "messages that are copied, the parameters are others; send it by self.transport"
        )
