"""An entry of the scoreboard: a strategy of the table, or one file of the user's.

Ranks in virtual time share a process. So that they share nothing but messages, each executes the file of the entry for
itself, and receives copies.
"""

import copy
import dataclasses
import inspect
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from gradwire.core.launchers.launcher import Job
from gradwire.core.records.errors import RunFailed, UsageError, unknown
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.training.orders import Orders
from gradwire.core.transports.messages import Work
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.lookup import blamed_on
from gradwire.scoreboard.clusters import RANKS
from gradwire.scoreboard.rules import check_file, options_in
from gradwire.strategies import STRATEGIES
from gradwire.virtual_time.in_place import InPlace
from gradwire.virtual_time.transport import Simulated

MOST_SAMPLES = 1_000_000
_PLAIN = type(None), bool, int, float, str, bytes


class ScoredTransport(Simulated):
    """A rank whose messages are copied by value when they are sent, and carry only bytes that are counted.

    `beside` are the bytes of the tags and, eight each, of the numbers that it has sent.
    """

    beside = 0

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        if type(tag) is not str:
            raise RunFailed(f"isend(..., tag) of the type {type(tag).__name__}: must be a plain str")
        if type(value) not in (Tensor, Parameter) and not _is_plain(value):
            raise RunFailed(f"isend() of the type {type(value).__name__}: send a tensor, or plain values of Python")
        if type(n) not in (int, float) or not (0 <= n <= MOST_SAMPLES and n == int(n)):
            raise RunFailed(f"isend(..., n={n}): must be a number of samples, which is not counted as bytes")
        self.beside += len(tag.encode("utf-8", "surrogatepass")) + 8
        work, nbytes = super()._send(value, dst, tag, n, sent)
        if isinstance(work, InPlace) and work._message is not None and work._message.tensor is not None:
            work._message.tensor = work._message.tensor.detach().clone()
        return work, nbytes


def _is_plain(value: Any) -> bool:
    """Return whether a value, and each within it, is of a type of Python's own, which has no attributes."""
    if type(value) is dict:
        return all(map(_is_plain, [*value, *value.values()]))
    return type(value) in _PLAIN or (type(value) in (tuple, list, set, frozenset) and all(map(_is_plain, value)))


@dataclass(frozen=True)
class Entry:
    """A strategy by its name, or yourmodule:YourClass; its file; and its options on each cluster, as one types them."""

    name: str
    file: str
    options: dict[str, str]

    @property
    def is_own(self) -> bool:
        """Whether it is the user's."""
        return ":" in self.name

    def load(self) -> None:
        """Import the module, for what all ranks may share."""
        name = self.name.partition(":")[0]
        if self.is_own and getattr(sys.modules.get(name), "__file__", "") != self.file:
            sys.modules[name] = self._execute(name)

    def for_each(self, job: Job) -> Job:
        """Return the job of a run in which each rank has a module of its own."""
        return dataclasses.replace(job, work=partial(self._train, job.work)) if self.is_own else job

    def _train(self, work: Any, transport: Any, report: Any, orders: Orders, data: Data) -> Any:
        module, _, kind = self.name.partition(":")
        given = orders.options.strategy
        fields = [field.name for field in dataclasses.fields(given) if field.init]
        values = {name: copy.deepcopy(getattr(given, name)) for name in fields}
        own = vars(self._execute(module))[kind](**values)
        options = dataclasses.replace(orders.options, strategy=own)
        return work(transport, report, dataclasses.replace(orders, options=options), data)

    def _execute(self, name: str) -> ModuleType:
        module = ModuleType(name)
        module.__file__ = self.file
        sys.modules.setdefault(name, module)  # where dataclasses look for types
        with blamed_on(f"{self.name}: importing {self.file}"):
            exec(compile(Path(self.file).read_text(encoding="utf-8"), self.file, "exec"), vars(module))
        return module


def takes_part(kind: type[Strategy]) -> bool:
    """Return whether a strategy of the table is an entry: on machines that share no memory, it sends something."""
    made = kind()
    try:
        check_strategy(made, RunSize(RANKS, made.count_workers(RANKS), 1000, shared_memory=False))
    except UsageError:
        return False
    return (kind.traits.ranks[1] or RANKS) >= RANKS and made.cost().worker.messages != "0"


ENTRIES = [name for name, kind in STRATEGIES.items() if takes_part(kind)]


def find(name: str, options: dict[str, str] | None = None) -> Entry:
    """Return an entry; `options` stand for those of its file. Raises UsageError, RunFailed if it breaks a rule."""
    if ":" not in name:
        if name not in ENTRIES:
            raise unknown("entry", name, ENTRIES, "yourmodule:YourClass")
        return Entry(name, str(inspect.getsourcefile(STRATEGIES[name])), options or {})
    module, _, kind = name.partition(":")
    if not (module.isidentifier() and kind.isidentifier()):
        raise UsageError(f"{name}: must be yourmodule:YourClass, of a file yourmodule.py in the current directory")
    path = Path(f"{module}.py").absolute()
    if not path.is_file():
        raise UsageError(f"{name}: there is no {path.name} in the current directory; put it there")
    if getattr(sys.modules.get(module), "__file__", str(path)) != str(path):
        raise UsageError(f"{name}: {module} is the name of another module; rename the file")
    check_file(path)
    return Entry(name, str(path), options_in(path) if options is None else options)
