"""The part of a script that starts processes, as a rank runs it.

Every rank runs that part in a thread of its own, and of the processes one: the k-th is rank k. What the part does with
an object that processes share is done once, by the rank that comes to it first; the others get what it got. So all
ranks run the same part.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from gradwire.torch_scripts.process_state import ProcessState
from gradwire.torch_scripts.script import Program

if TYPE_CHECKING:
    from gradwire.torch_scripts.shared import Shared
    from gradwire.torch_scripts.threads import RankThread

_LOOK_S = 1e-3  # what a look takes at whether a process has ended


@dataclass
class Started:
    """What the parts of all ranks have in common.

    `states` of shared objects are in the order in which they are made, and the outcomes in `done` in that of what is
    done with them. `ended` are the numbers of processes, `sizes` how many each spawn starts.
    """

    states: list[Any] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)


class Starter:
    """The part as a rank runs it."""

    def __init__(self, rank: "RankThread") -> None:
        self._rank = rank
        self._objects: list[Shared] = []
        self.processes = self._done = 0  # those that it has started

    def start(self, run: Callable[[], object], size: int) -> "Child":
        """Start a process; return what its starter finds of it."""
        number = self.processes
        self.processes += 1
        if not number:
            for i, made in enumerate(self._objects):
                self._share(i, made)
        if number % size == self._rank.rank:
            self._rank.start_process(run, number)
        return Child(self._rank, number)

    def note(self, made: "Shared") -> None:
        """Note an object that the part makes; with the first process, it becomes one of all ranks."""
        self._objects.append(made)
        if self.processes:
            self._share(len(self._objects) - 1, made)

    def use(self, do: Callable[[], Any], words: str, ready: Callable[[], bool], limit_s: float | None) -> Any:
        """Do something with a shared object when it is `ready`. Raises TimeoutError: it is not within the limit."""
        done, i = list[Any](), 0
        if self.processes:
            done, i = self._rank.engine.started.done, self._done
            self._done += 1
        in_time = self._rank.wait_until(lambda: len(done) > i or ready(), words, limit_s)
        if len(done) == i:
            done.append(_outcome(do) if in_time else TimeoutError(words))
        self._rank.ask(partial(self._rank.engine.changed, self._rank))
        if isinstance(done[i], Exception):
            raise done[i]
        return deepcopy(done[i])

    def _share(self, i: int, made: "Shared") -> None:
        states = self._rank.engine.started.states
        if i == len(states):
            states.append(made.state)
        made.state = states[i]


class Process(Program):
    """What a process that a script starts runs."""

    def __init__(self, starter: Program, run: Callable[[], object]) -> None:
        self.name, self.arguments, self.on_cpu, self.folder = (
            starter.name, starter.arguments, starter.on_cpu, starter.folder,
        )  # fmt: skip
        self._run = run

    @override
    def run(self, state: ProcessState) -> Any:
        return self._run()


class Child:
    """A process that is a rank, as multiprocessing finds it in its starter, in place of a Popen."""

    def __init__(self, rank: "RankThread", number: int) -> None:
        self._rank, self._number, self.pid = rank, number, number

    @property
    def returncode(self) -> int | None:
        """See multiprocessing."""
        return 0 if self._number in self._rank.engine.started.ended else None

    def wait(self, timeout: float | None = None) -> int | None:
        """See multiprocessing."""
        self._rank.wait_until(lambda: self.returncode is not None, f"join of process {self._number}", timeout)
        return self.returncode

    def poll(self) -> int | None:
        """See multiprocessing. Others go on meanwhile."""
        return self.wait(None if self._rank.seconds() is None else _LOOK_S)

    def terminate(self) -> None:
        """See multiprocessing: a rank runs to its end."""

    kill = close = terminate


class Spawned:
    """See torch.multiprocessing.SpawnContext."""

    def __init__(self, children: list[Child]) -> None:
        self._children = children

    def pids(self) -> list[int]:
        """See torch."""
        return [child.pid for child in self._children]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """See torch."""
        return all(child.wait(timeout) == 0 for child in self._children)


def _outcome(do: Callable[[], Any]) -> Any:
    """Return what `do` returns or raises."""
    try:
        return do()
    except Exception as error:
        return error
