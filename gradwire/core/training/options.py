"""The options of a run: dataclasses, one a panel of `--help`, from which the command line is made.

Here are those that every run has; wings bring panels of their own: see `Wing.panel`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import torch

from gradwire.core.launchers.launcher import Launcher
from gradwire.core.launchers.local import LAUNCHER
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE_ALWAYS, MAY_CHANGE_ON_RESUME, OF_THIS_RUN, RecordOptions, option
from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.settings import RunSettings
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.updater import Schedule
from gradwire.core.training.optimizers import DECAYS, OPTIMIZERS, SCHEDULES, factory, schedule
from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.data import Data, Fetcher, fetch_here
from gradwire.core.workloads.lookup import UserObject
from gradwire.core.workloads.options import DataOptions, Named

T = TypeVar("T")
TRAINED = {"float32": torch.float32, "float64": torch.float64}
DTYPES = TRAINED | {"bfloat16": torch.bfloat16}
AMP = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST = 1e30  # more than a float32 holds, torch refuses

STRATEGY_MAY_SAY = "strategy may say"
"""Metadata of an option with a default that stands only where neither the strategy nor the codec has its own."""
CHOICE = "choice"
"""Metadata of an option that is an object: the `Choice` of what it may be."""
BY_NAME = ("dataset", "model", "task", "optimizer")  # which may also be given as a function or class


@dataclass(frozen=True)
class Choice:
    """What an option that is an object may be: an instance of a class of `table`, with options of its own.

    `base` is the class that all derive from, `help` its text in `--help`, `example` what to write in Python. `defaults`
    returns the defaults that an instance has for options of every run.
    """

    base: type[Any]
    table: Mapping[str, type[Any]]
    help: str
    example: str
    defaults: Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class _Unless:
    """Stands for a default until it is known whether the strategy or the codec has its own."""

    default: Any

    def __repr__(self) -> str:
        return f"{self.default!r} (unless the strategy or the codec has its own)"


def _strategy_may_say(default: T, **limits: float) -> T:
    stands: Any = _Unless(default)
    made: T = option(stands, **limits, metadata={STRATEGY_MAY_SAY: default})  # type: ignore[arg-type]
    return made


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What is computed, by how many, and how."""

    n_gpus: int | None = option(None, least=1)
    """Number of processes, one per GPU (or share of the CPU); a parameter server counts as one. Default: the GPUs
    there are, at least as many as the strategy needs; as many as torchrun or mpirun started."""
    batch_size: int = _strategy_may_say(64, least=1)
    """Samples per worker and step."""
    global_batch_size: int | None = option(None, least=1)
    """Samples per step of all workers together, instead of batch_size x workers."""
    epochs: int = option(10, least=1, metadata=MAY_CHANGE_ON_RESUME)
    """Passes over the training set."""
    lr: float = _strategy_may_say(0.1, above=0, most=MOST)
    """Learning rate."""
    momentum: float = _strategy_may_say(0.9, below=1)
    """Momentum of sgd; the first beta of the adam family."""
    weight_decay: float = _strategy_may_say(0.0, least=0, most=MOST)
    """Weight decay of the optimizer."""
    decay: str = option("all", choices=DECAYS)
    """What --weight_decay is for: all parameters, or matrices (what has two dimensions or more: no bias, no norm)."""
    optimizer: Named = _strategy_may_say("sgd")  # noqa: RUF009 - a str
    """Any optimizer of torch.optim by its name, such as sgd, adam, adamw or rmsprop; muon, for the matrices of hidden
    layers, with adamw for embeddings and the rest; or yourmodule:function, which is called with a list of pairs (name,
    parameter) and returns a torch optimizer, with groups as it likes. It runs where the algorithm runs it, on the
    server or on every rank."""
    optimizer_options: tuple[str, ...] = ()
    """More of its options, NAME=VALUE, such as nesterov=True or eps=1e-6."""
    lr_schedule: str = option("constant", choices=SCHEDULES, metadata=MAY_CHANGE_ON_RESUME)
    """How the learning rate changes with the samples processed: constant, step (a tenth after a half, and after three
    quarters) or cosine (down to 0)."""
    warmup: float = field(default=0.0, metadata=MAY_CHANGE_ON_RESUME)
    """Epochs in which the learning rate first rises from 0."""
    clip_norm: float = option(0.0, least=0, most=MOST, metadata=MAY_CHANGE_ON_RESUME)
    """Bound on the norm of the averaged gradient; 0: none."""
    accumulate: int = option(1, least=1)
    """Compute each step's gradient in this many pieces, one after the other: less memory, the same update."""
    device: str = option("auto", choices=("auto", "cpu", "cuda"), metadata=MAY_CHANGE_ON_RESUME)
    """auto (cuda if there is a GPU), cpu or cuda."""
    dtype: str = option("float32", choices=DTYPES)
    """Floating-point type of the training: float32 or float64. Steps that are only timed may be in bfloat16 too."""
    amp: str = option("none", choices=AMP)
    """Mixed precision: compute the forward pass and the loss by torch's autocast in bf16, or, on a GPU, in fp16, whose
    gradients a GradScaler keeps in range. Parameters, gradients, the optimizer and the evaluation stay float32; none:
    no autocast."""
    seed: int = option(0, least=0, most=2**63 - 1)
    """Seed of the weights, the order of the samples, and everything else that is random."""
    timeout: float = option(120.0, least=1, most=1e6, metadata=MAY_CHANGE_ALWAYS)
    """Seconds that any process waits for another before the run is ended; more than the longest step takes."""
    restarts: int = option(0, least=0, metadata=OF_THIS_RUN)
    """Start workers that died again, at most N times in all, where a server lets them in. Only with the local
    launcher."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The floating-point type."""
        return DTYPES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class CoreOptions(RunOptions, DataOptions, RecordOptions):
    """What every run has, whatever wings there are.

    `model`, `dataset`, `task` and `optimizer` are names, or functions and classes as --help describes them, wherever
    they are defined; an optimizer of torch.optim may be given as its class. Raises UsageError for anything else.
    """

    strategy: Strategy

    wings: ClassVar[tuple[Any, ...]] = ()
    """What else a run with these options has: see `Wing`, which imports this module."""
    panels: ClassVar[Mapping[str, type[Any]]] = {
        "run": RunOptions, "data and model": DataOptions, "record": RecordOptions,
    }  # fmt: skip
    """The dataclasses that the options are made of, by their titles in `--help all`."""

    def __post_init__(self) -> None:
        for name, choice in self.choices().items():
            if not isinstance(given := getattr(self, name), choice.base):
                raise UsageError(f"--{name}: is {given!r}; give an instance of a class, such as {choice.example}")
        by_class = {kind: name for name, kind in OPTIMIZERS.items()}
        for name in BY_NAME:
            given = getattr(self, name)
            if not isinstance(given, str | _Unless | None):
                named = by_class.get(given) if name == "optimizer" and isinstance(given, type) else None
                object.__setattr__(self, name, named or UserObject.of(f"--{name}", given))
        own = self.own_defaults
        for entry in dataclasses.fields(self):
            if isinstance(stands := getattr(self, entry.name), _Unless):
                value = own.get(entry.name, stands.default)
                object.__setattr__(self, entry.name, value)

    @classmethod
    def choices(cls) -> dict[str, Choice]:
        """Return the options that are objects, `strategy` the first: what each may be."""
        return {option.name: option.metadata[CHOICE] for option in dataclasses.fields(cls) if CHOICE in option.metadata}

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options that every run has, as on the command line without the dashes."""
        of_panels = [option.name for panel in cls.panels.values() for option in dataclasses.fields(panel)]
        return [*cls.choices(), *(name for name in of_panels if name not in cls.choices())]

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that are objects, by name."""
        return {name: getattr(self, name) for name in self.choices()}

    @property
    def own_defaults(self) -> dict[str, Any]:
        """The defaults that the codec and the strategy have of their own; where both have one, the strategy's.

        A momentum of their own is sgd's: another optimizer keeps the default of every run.
        """
        own: dict[str, Any] = {}
        for name, choice in reversed(self.choices().items()):
            own |= choice.defaults(getattr(self, name))
        stands = self.optimizer
        optimizer = own.get("optimizer", stands.default) if isinstance(stands, _Unless) else stands
        return own if optimizer == "sgd" else {name: value for name, value in own.items() if name != "momentum"}

    @property
    def world_size(self) -> int:
        """The number of processes; only of resolved options."""
        return len(self.roles)

    @property
    def roles(self) -> list[str]:
        """Each rank's role, "worker" or "server"; only of resolved options."""
        assert self.n_gpus is not None, "only of resolved options"
        return self.strategy.roles(self.n_gpus)

    def recorded(self) -> dict[str, Any]:
        """Return all options, those of the strategy too, as they are written into records and checkpoints."""
        names = {name: chosen.name for name, chosen in self.chosen.items()}
        return names | {name: value for _, name, value in self.all_fields()}

    def all_fields(self) -> Iterator[tuple[dataclasses.Field[Any], str, Any]]:
        """Yield each option but the objects, and those of the objects too: its field, name and value."""
        for owner in (*self.chosen.values(), self):
            for entry in dataclasses.fields(owner):
                if CHOICE not in entry.metadata:
                    yield entry, entry.name, getattr(owner, entry.name)

    def plan(self, n_samples: int) -> BatchPlan:
        """Return the batch plan for a training set of `n_samples`. Raises UsageError."""
        assert self.n_gpus is not None, "only of resolved options"
        workers = self.strategy.count_workers(self.n_gpus)
        return BatchPlan(n_samples, workers, self.global_batch_size or self.batch_size * workers, self.seed)

    def make_optimizer(self) -> OptimizerFactory:
        """Return what makes the optimizer from a list of parameters. Raises UsageError."""
        momentum = self.optimizer_momentum
        return factory(self.optimizer, self.lr, momentum, self.weight_decay, self.optimizer_options, self.decay)

    def make_schedule(self, n_samples: int) -> Schedule | None:
        """Return the schedule of the learning rate for a training set of `n_samples`; None if it is constant."""
        if self.lr_schedule == "constant" and not self.warmup:
            return None
        return schedule(self.lr_schedule, self.epochs * n_samples, round(self.warmup * n_samples))

    # Overridable by a panel

    @property
    def optimizer_momentum(self) -> float:
        """The momentum that the optimizer has."""
        return self.momentum

    @property
    def link(self) -> Any:
        """A new link on which messages between processes are held back; None: they are not."""
        return None

    def find_launcher(self) -> Launcher:
        """Return what starts the ranks. Raises UsageError."""
        return LAUNCHER

    def make_fetcher(self, data: Data, device: torch.device) -> Fetcher:
        """Return what decodes the batches of a rank on this device."""
        return partial(fetch_here, data)

    @property
    def is_resumed(self) -> bool:
        """Whether the run continues another one."""
        return False

    @property
    def is_replay(self) -> bool:
        """Whether the order of messages is that of another run."""
        return False

    def settings(self) -> RunSettings:
        """Return the settings of the run that a strategy receives."""
        return RunSettings(self.clip_norm, seed=self.seed)

    def start_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `Strategy.start` that depend on the options."""
        return {}


if TYPE_CHECKING:
    Panel: TypeAlias = CoreOptions
    """The base class of panels: a panel is mixed into the options of a run, whose members it may use and override."""
else:
    Panel = object


def names_with_strategy_defaults() -> list[str]:
    """Return the names of the options for which a strategy may have a default of its own."""
    return [option.name for option in dataclasses.fields(RunOptions) if STRATEGY_MAY_SAY in option.metadata]
