"""Properties of an algorithm before it runs: its traits, and formulas for the traffic and memory of a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from gradwire.core.records.formulas import evaluate

END, SURVIVED, RETURNING = "end", "survived", "returning"
"""The effect of a worker's death: the run ends; it goes on; it goes on, and a restarted worker joins."""


@dataclass(frozen=True)
class Traits:
    """What holds for an algorithm whatever its options: an option that changed one would make another algorithm.

    `deaths` other than END: the servers, or without one rank 0, hold all that matters, so a run can lose the other
    workers.
    """

    asynchronous: bool = False  # workers do not wait for each other: the order of arrival decides the result
    agree: bool = True  # all replicas are bit-identical when an epoch has ended
    steps_by_mean: bool = True  # where they wait and agree: a step is the optimizer's, by the mean of all gradients
    punctual: bool = True  # what belongs to a step has been sent when all ranks have taken it
    deaths: str = END
    ranks: tuple[int, int | None] = (1, None)  # the fewest and the most
    carries: frozenset[str] = frozenset()  # the kinds of codecs that its gradients can be sent by
    server_updates: bool = False  # only servers run the optimizer, so its options are theirs
    defaults: Mapping[str, Any] = field(default_factory=dict)  # options of the run with a default of its own

    @property
    def workers_may_die(self) -> bool:
        """Whether a run goes on without a worker that has died."""
        return self.deaths != END

    @property
    def workers_may_return(self) -> bool:
        """Whether one that has died can be started again and take part."""
        return self.deaths == RETURNING


@dataclass(frozen=True)
class Traffic:
    """The traffic of the ranks of one role, on average over them, while every worker takes one step.

    `messages` and `bytes` are formulas, written as on paper: "2 (N - 1) P / N". They know N (ranks), p (the largest
    power of two up to N), L (log2 p), P (bytes of the parameters), G (bytes of a gradient as it is sent: P, or those of
    its code), n (parameters), w (bytes of one), B (blocks into which the model is cut) and the options of the strategy
    by their names. What ends an epoch (goodbyes, buffers) is not in them. As a critical path, `while_computing` says
    that they travel while the step computes, so that it takes the greater of the two times; otherwise their sum.
    `in_turn`: the messages of the path that occupy a card one after the other, if they are not its `messages`.
    `powers_of_two`: the path is known where N is a power of two only.
    """

    messages: str
    bytes: str
    while_computing: bool = False
    in_turn: str = ""
    powers_of_two: bool = False

    def count(self, values: Mapping[str, float]) -> tuple[float, float]:
        """Return messages and bytes for `values` of these letters and options. Raises NameError if one is missing."""
        return evaluate(self.messages, values), evaluate(self.bytes, values)


NOTHING = Traffic("0", "0")


@dataclass(frozen=True)
class Cost:
    """The traffic of one step of every worker."""

    worker: Traffic  # by each worker
    server: Traffic | None = None  # by each server
    path: Traffic | None = None  # the critical path: messages that wait for each other; None: no time is predicted
    in_order: Traffic | None = None  # the path where cards pass messages in order, if it is another
    code: Any = None  # the codec of its own that the algorithm sends gradients by, if any, whose bytes are G
    scope: str = "tensor"  # what that codes one by one: see `compression.Setting`

    @property
    def by_role(self) -> dict[str, Traffic]:
        """The traffic that each role sends."""
        return {"worker": self.worker} | ({"server": self.server} if self.server else {})


@dataclass(frozen=True)
class Footprint:
    """The most bytes of each kind that a rank of one role holds in a step, which `gradwire.diagnosis.memory` counts.

    Formulas as in `Traffic`; they know S too, the bytes that the optimizer keeps if it updates all of x. A codec's
    memory, activations and the temporaries of an update are not in them.
    """

    parameters: str = "P"
    gathered_parameters: str = "0"
    gradients: str = "P + P / B"  # g, and those of a block until they are in it
    optimizer_state: str = "S"
    buckets: str = "0"
    other: str | None = "0"  # the algorithm's own; None: it has no closed form


@dataclass(frozen=True)
class Weight:
    """The weight of a gradient g_k in the model, in learning rates, while SGD without momentum makes the updates.

    Each update takes `rate` times the mean of `gradients` of them, weighted `by_samples` n_k, or all alike. Where
    workers do not wait for each other, the last update of an epoch may take fewer.
    """

    gradients: int
    rate: float = 1.0
    by_samples: bool = True


@dataclass(frozen=True)
class Choice:
    """The choice of an algorithm that chooses between others when it begins, for the records."""

    taken: str
    options: dict[str, Any]
    repeat: str  # the option that takes it again
    why: str
    us: dict[str, float]  # microseconds of each that was compared, as expected or timed

    def text(self) -> str:
        """Return it in one line."""
        found = ", ".join(f"{name} {self.us[name]:.4g}" for name in sorted(self.us, key=self.us.__getitem__))
        return f"{self.taken}, {self.why}" + f"; us: {found}" * bool(found)


@runtime_checkable
class Chooses(Protocol):
    """A strategy that chooses between algorithms: `chosen` is the chosen strategy; no `choice`: it has not begun."""

    choice: Choice | None
    chosen: Any


def choice_of(strategy: object) -> Choice | None:
    """Return the choice of a strategy that has begun, if it chooses between algorithms."""
    return strategy.choice if isinstance(strategy, Chooses) else None


@dataclass(frozen=True)
class Coded:
    """The facts of a codec that a formula needs: its kind, and the bytes of a code."""

    kind: str
    nbytes: float
