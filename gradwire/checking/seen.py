"""The records of a watched run: what each rank has stepped, computed, loaded and opened."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradwire.checking.sketch import Sketch

# How a step is taken: by a strategy whose ranks talk; by the mean of their gradients; by servers, which have the model.
STRATEGY, MEAN, SERVER = "strategy", "mean", "server"


@dataclass
class Own:
    """The gradient of one rank that has reached a leaf. `passes`: which backward passes; `taken`: those stepped by."""

    sketch: Sketch
    passes: list[int] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)


@dataclass
class Parameter:
    """A parameter at a step: sketches before and after, of the rank's own gradient and of the one that is taken.

    `is_stale`: the gradient holds passes that a step before has taken. `sent_at`: where it was all-reduced.
    """

    name: str
    size: int
    before: Sketch
    own: Sketch | None
    taken: Sketch | None
    passes: tuple[int, ...]
    is_stale: bool
    sent_at: str
    first: float  # its first element before, and `last` after
    last: float = 0.0
    after: Sketch = field(init=False)


@dataclass(frozen=True)
class Criterion:
    """A loss that a backward pass came through, computed at a line.

    `weight`: the gradient that reached it, of a sum times its terms; `n`: targets that count.
    """

    weight: float
    n: int
    is_mean: bool
    at: str


@dataclass
class Step:
    """A step of an optimizer on a rank. `key`: what the steps of other ranks share that belong to it.

    `written`: by parameter, the line that changed it since the step before. `how`: "ddp", "inner", "no_sync", "eval",
    or the ways of a strategy. `repeats`: it called its closure more than once.
    `samples`: those that it was given; 0: none are.
    """

    rank: int
    number: int
    key: tuple[str, int, int]
    at: str
    kind: str
    settings: list[dict[str, Any]]
    parameters: dict[str, Parameter]
    buffers: dict[str, Sketch]
    repeats: bool
    how: frozenset[str]
    criteria: dict[int, list[Criterion]]  # by backward pass
    lines: dict[int, str]  # of backward passes
    written: dict[str, str]
    rows: frozenset[int]  # checksums of the samples of its forward passes
    samples: float

    @property
    def shares(self) -> bool:
        """Whether its gradients were all-reduced, by DDP or the script, or given to a strategy."""
        return bool({"ddp", STRATEGY} & self.how) or any(p.sent_at for p in self.parameters.values())


@dataclass
class Epoch:
    """One iteration over a loader. `indices`: of the samples taken, in the whole data set; `of`: those it may take.

    `rows`: checksums of parts of the samples, by index. `trains`: a backward pass followed a batch of it.
    """

    rank: int
    loader: int
    at: str
    size: int
    of: Sequence[int]
    sampler: Any
    content: int | None
    indices: list[int] = field(default_factory=list)
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    has_ended: bool = False
    trains: bool = False
    last: list[int] = field(default_factory=list)  # of the last batch


@dataclass(frozen=True)
class FileUse:
    """A file that was opened. `clock`: by rank, the events that came before."""

    rank: int
    path: str
    mode: str
    at: str
    clock: tuple[int, ...]

    def is_before(self, other: "FileUse") -> bool:
        """Return whether a chain of messages puts this before the other."""
        return self.clock[self.rank] <= other.clock[self.rank]


@dataclass(frozen=True)
class Touch:
    """An operation on what a call under way reads or writes."""

    rank: int
    at: str
    operation: str
    call: str
    called_at: str
    writes: bool


@dataclass(frozen=True)
class ModelParameter:
    """A parameter of a model that a rank has called. `is_given`: it had a gradient at a step, wherever from."""

    has_gradient: bool
    is_stepped: bool
    is_given: bool


@dataclass
class Run:
    """All of it. `parallel`: models in whose forward pass ranks talk. `unwaited`: calls nobody waited for, and lines.

    `is_whole`: the script has come to its end. `ends`: the parameters of each rank at the end.
    """

    n: int
    steps: list[Step] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    files: list[FileUse] = field(default_factory=list)
    touches: list[Touch] = field(default_factory=list)
    unwaited: list[tuple[int, str, str]] = field(default_factory=list)
    parallel: bool = False
    ddp: set[str] = field(default_factory=set)
    may_be_unused: set[str] = field(default_factory=set)  # DDP was told to expect it
    made: dict[int, dict[str, tuple[Sketch, str]]] = field(default_factory=dict)  # by rank, when DDP had made them
    # By number and rank: parameters that had been stepped when DDP was made of them, as they were before, and the line.
    wrapped: list[dict[int, tuple[dict[str, Sketch], str]]] = field(default_factory=list)
    models: list[dict[str, ModelParameter]] = field(default_factory=list)
    orphans: list[dict[str, str]] = field(default_factory=list)  # by rank: stepped, of no model that was called
    strays: list[list[tuple[int, ...]]] = field(default_factory=list)  # by rank: shapes of parameters of no model
    ends: list[dict[str, Sketch]] = field(default_factory=list)
    trained: list[set[str]] = field(default_factory=list)  # by rank: not frozen, with a gradient
    # By rank and step: the loader's epoch, and a checksum of torch's random state.
    draws: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    streams: bool = False  # a loader of an IterableDataset was used
    servers: set[int] = field(default_factory=set)  # ranks that take no step
    teams: dict[int, tuple[int, ...]] = field(
        default_factory=dict
    )  # by rank: the part of all that it shares gradients with
    is_whole: bool = True

    @property
    def members(self) -> list[int]:
        """The ranks that train."""
        return [rank for rank in range(self.n) if rank not in self.servers]

    @property
    def in_teams(self) -> bool:
        """Whether each rank shares gradients within a part of all ranks: each part may train a model of its own."""
        return all(rank in self.teams for rank in self.members)

    def groups(self) -> Iterator[list[Step]]:
        """Yield the steps of all members that belong together, in the order of the first."""
        found: dict[tuple[str, int, int], dict[int, Step]] = {}
        for step in self.steps:
            found.setdefault(step.key, {})[step.rank] = step
        members = self.members
        for steps in found.values():
            if len(steps) == len(members) > 1:
                yield [steps[rank] for rank in members]

    def between(self, first: Step, last: Step) -> list[Step]:
        """Return the steps of the earliest group between two that not all ranks took; []: all took all of them."""
        found = [step for step in self.steps if step.key[0] == first.key[0] and first.key < step.key < last.key]
        keys = Counter(step.key for step in found)
        earliest = min((key for key, count in keys.items() if count < len(self.members)), default=None)
        return [step for step in found if step.key == earliest]


def common(group: Sequence[Step]) -> Iterator[tuple[str, list[Parameter]]]:
    """Yield the parameters that all steps have, of equal sizes and finite."""
    for name in group[0].parameters:
        found = [step.parameters[name] for step in group if name in step.parameters]
        is_finite = all(np.isfinite(each.before).all() for each in found)
        if len(found) == len(group) and len({each.size for each in found}) == 1 and is_finite:
            yield name, found


def shown(name: str) -> str:
    """Return the name of a parameter as its model has it."""
    return name.partition(":")[2] or name


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks in words."""
    found = [str(number) for number in sorted(set(numbers))]
    return f"rank {found[0]}" if len(found) == 1 else f"ranks {', '.join(found[:-1])} and {found[-1]}"
