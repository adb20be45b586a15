"""What a lab is: the functions that a student writes, the cases they are run on, and the verdicts on the results."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import torch

from gradwire.every_order.report import Report

BANDWIDTH, LATENCY = 125e6, 50e-6  # of every card: 1 Gbit/s in bytes a second, and seconds
Vectors: TypeAlias = dict[str, torch.Tensor]


class Fault(Exception):
    """What is wrong with a student's function, in one line for the student. `kind` names it for programs.

    Of kind "orders", the lines of an order follow. `right` names the parts of the lab that are right all the same.
    """

    def __init__(self, kind: str, message: str, right: Sequence[str] = ()) -> None:
        super().__init__(kind, message if kind == "orders" else " ".join(message.split()))
        self.kind, self.right = kind, right

    def __str__(self) -> str:
        return str(self.args[1])


@dataclass(frozen=True)
class Case:
    """One run, on `n` ranks, with vectors of `length` elements.

    Of one `function` alone, if it is named, or of those up to the one that `until` names.
    """

    n: int
    length: int
    dtype: torch.dtype = torch.float32
    function: str = ""
    until: str = ""

    def __str__(self) -> str:
        kind = "" if self.dtype == torch.float32 else f", {name_dtype(self.dtype)}"
        case = f"N = {self.n}, {counted(self.length, 'element')}{kind}"
        return f"{self.function}, {case}" if self.function and self.n > 1 else self.function or case


@dataclass
class Sent:
    """One message that a rank has sent. `step` counts the messages of its rank from 1."""

    rank: int
    step: int
    dst: int
    tag: str
    vector: torch.Tensor | None  # what it carried, copied; None: an object
    span: tuple[int, int, int] | None  # of an allocated vector: its number, first element, one past the last
    nbytes: int
    round: int  # 1 + that of the last message that its sender had received before
    sent: float  # virtual seconds
    arrived: float | None = None  # when its receiver took it
    released: bool = False  # whether its receiver has read it
    number: int = 0  # when it was sent, among all that ranks have sent and taken, from 1
    taken: int = 0  # when it was taken, likewise; 0: it was not
    became: torch.Tensor | None = None  # what its memory held when it was changed before that; None: it was not


@dataclass(frozen=True)
class Lane:
    """A span in which a rank computed: a pass, in virtual seconds. `group` gets one colour."""

    rank: int
    begin: float
    end: float
    label: str
    group: str


@dataclass
class Run:
    """What the judge has seen of one run: the messages in the order they were sent, and what each rank ended with."""

    case: Case
    inputs: Sequence[Vectors]
    sent: list[Sent] = field(default_factory=list)
    results: list[Vectors] = field(default_factory=list)  # by rank; empty if the run has failed
    messages: Sequence[int] = ()  # by rank, as its transport counts them
    nbytes: Sequence[int] = ()
    seconds: float = 0.0  # virtual
    lanes: list[Lane] = field(default_factory=list)
    damage: str = ""  # the first message that was changed on its way: all were carried as they had been sent

    @property
    def rounds(self) -> int:
        """The longest chain of messages, each of which was sent after the one before had been received."""
        return max((message.round for message in self.sent), default=0)

    def of_rank(self, rank: int) -> list[Sent]:
        """Return the messages of one rank, in order."""
        return [message for message in self.sent if message.rank == rank]


@dataclass(frozen=True)
class Figure:
    """One line of the score: what it cost, and what the best known, the solution, costs, with its closed form."""

    name: str
    yours: float
    best: float
    formula: str

    @property
    def is_best(self) -> bool:
        """Whether it cost no more than the best known. Times are sums of many terms, so 0.1 % more is none."""
        return self.yours <= 1.001 * self.best


class Lab(ABC):
    """A lab; its class says all of it. A new one is a module in this package, and a line in `labs.LABS`.

    Only the first fault that a method yields counts, so those that explain more come first; none: all is well.
    `functions` are the names of what the student writes. `cases` come in the order in which they are run: first those
    in which a fault is easiest to explain. `scored` is the case of the score and of the picture, `real` that of the run
    on processes; neither needs to be among `cases`. `parts` has, for a function that is not right, conditions on its
    run that get points in equal shares; the run has come to its end, or else the lab `looks_at_messages`.
    """

    name: ClassVar[str]
    functions: ClassVar[tuple[str, ...]]
    cases: ClassVar[tuple[Case, ...]]
    scored: ClassVar[Case]
    real: ClassVar[Case]
    formulas: ClassVar[tuple[str, ...]]  # of the solution's `costs`, as on paper
    whole: ClassVar[str] = ""  # which function the cases that name none are for; "": all of them together
    changed: ClassVar[tuple[str, ...]] = ("vector",)  # the names of the vectors that functions change in place
    steps: ClassVar[int] = 1  # that are run; costs are those of one
    parts: ClassVar[Mapping[str, Mapping[str, Callable[[Run], bool]]]] = {}
    looks_at_messages: ClassVar[bool] = False  # whether `parts` need no results
    carries_objects: ClassVar[bool] = True  # whether a message may be something else than a tensor

    @abstractmethod
    def draw(self, case: Case, chance: random.Random) -> list[Vectors]:
        """Return the inputs of each rank by name, drawn afresh, so that no function can know those of other ranks."""

    @abstractmethod
    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        """Run one rank: call the student's functions, `yours.NAME`, and return the results.

        `transport` is a `LabTransport`, or a real one. Raises Fault for what only the rank can see.
        """

    @abstractmethod
    def find_faults(self, run: Run) -> Iterable[str]:
        """Yield the faults in the results of the ranks, a line each."""

    def play(self, yours: Sequence[Any], run: Run, source: Any) -> Run:
        """Play a case by the functions `yours` of each rank, which come from `source`; return the run. Raises Fault."""
        from lessons.judge import Game  # which imports this module

        return Game(self, yours, run, source).play()

    def examine(self, yours: Sequence[SimpleNamespace], run: Run) -> Iterable[str]:
        """Yield the faults that come before those, found by calling the functions that each rank has in another way."""
        return ()

    def in_all_orders(self, load: Callable[[], SimpleNamespace]) -> Report | None:
        """Run a small case in all orders, if the lab has orders, up to the first fault.

        `load` returns the student's functions, for one rank in one order.
        """
        return None

    def comment(self, kind: str, run: Run) -> Iterable[str]:
        """Yield what the lab adds to the line of a Fault of this kind, which ended a run: "; rank 2 had no sample"."""
        return ()

    def right_so_far(self, function: str) -> str:
        """Return what a Fault's line says of the functions before this one, which have been judged."""
        done = self.functions[: self.functions.index(function)]
        return f"; right so far: {', '.join(done)}" if done else ""

    def explain_unread(self, run: Run, message: Sent) -> Iterable[str]:
        """Yield why a message was never received, in one line. `run.results` is empty if a rank still waits."""
        return ()

    def place(self, message: Sent, case: Case) -> str:
        """Return where in a run a message was sent, in the lab's words: "step 3"; by default it counts messages."""
        return f"step {message.step}"

    def label(self, message: Sent, case: Case) -> str:
        """Return what a message carries, in the lab's words: "chunk 1"."""
        return "an object" if message.vector is None else self.label_vector(message, message.vector, case)

    def label_vector(self, message: Sent, vector: torch.Tensor, case: Case) -> str:
        """Return what a message with a vector carries: by default what its tag says."""
        return message.tag

    def costs(self, run: Run) -> dict[str, float]:
        """Return the costs of a run of the case `scored`, by name: by default of a step, of the busiest sender."""
        costs = {"messages of a rank": max(run.messages), "bytes of a rank": max(run.nbytes), "rounds": run.rounds,
                 "virtual seconds": run.seconds}  # fmt: skip
        return {name: cost / self.steps for name, cost in costs.items()}

    def figures(self, run: Run, reference: Run) -> tuple[Figure, ...]:
        """Return the score of a run, held against that of the solution on the same inputs, the best known."""
        best = self.costs(reference)
        rows = zip(self.costs(run).items(), self.formulas, strict=True)
        return tuple(Figure(name, cost, best[name], formula) for (name, cost), formula in rows)

    def is_other(self, run: Run) -> str:
        """Return why a right run that costs more is another algorithm than the lab's, which gets a third of the 60."""
        return ""

    def function_of(self, case: Case) -> str:
        """Return which function a case is for; "" if it is for all of them together."""
        return case.function or case.until or self.whole

    def advise(self, run: Run, missed: Sequence[Figure]) -> str:
        """Return why a right run costs more than the best known: a hint, if there is one, and the first figure."""
        figure = missed[0]
        text = f"{figure.name}: {figure.yours:.6g}; the best known needs {figure.best:.6g}, {figure.formula}"
        return "; ".join([*islice(self.hint(run, missed), 1), text])

    def hint(self, run: Run, missed: Sequence[Figure]) -> Iterable[str]:
        """Yield why these figures are worse than the best known, in the lab's words."""
        return ()


def first(lines: Iterable[str]) -> str:
    """Return the first of some lines; "" if there is none."""
    return next(iter(lines), "")


def name_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype: "float32"."""
    return str(dtype).removeprefix("torch.")


def counted(n: int, what: str) -> str:
    """Return a number of things: "1 step", "2 steps"."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
