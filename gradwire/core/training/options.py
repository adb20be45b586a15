"""The options of a run: dataclasses, one a panel of `--help`, from which the command line is made.

The panels of the other rooms are theirs: `options.py` of workloads, records and checkpoints.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

import gradwire.wings  # noqa: F401 - they fill the tables that the options choose from
from gradwire.checkpoints.options import CheckpointOptions
from gradwire.compression import Codec, Layout, NoCodec, Setting
from gradwire.compression.coding import CodecFactory, codec_factory, coded
from gradwire.core.records.errors import UsageError
from gradwire.core.records.options import MAY_CHANGE_ALWAYS, MAY_CHANGE_ON_RESUME, OF_THIS_RUN, RecordOptions
from gradwire.core.strategy.base import Strategy
from gradwire.core.strategy.descent import Schedule
from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.traits import Coded
from gradwire.core.training.optimizers import OPTIMIZERS, factory, schedule
from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.lookup import UserObject
from gradwire.core.workloads.options import DataOptions, Named
from gradwire.networks.graph import Graph, read_graph
from gradwire.networks.link import Link
from gradwire.networks.units import PAYLOAD, bytes_per_second, seconds
from gradwire.strategies import RingAllReduce

T = TypeVar("T")
TRAINED = {"float32": torch.float32, "float64": torch.float64}
DTYPES = TRAINED | {"bfloat16": torch.bfloat16}

AFTER_WARM_UP = 10**6
"""An epoch after every codec's warm-up."""
STRATEGY_MAY_SAY = "strategy may say"
"""Metadata of an option with a default that stands only where neither the strategy nor the codec has its own."""
BY_NAME = ("dataset", "model", "task", "optimizer")  # which may also be given as a function or class


@dataclass(frozen=True)
class _Unless:
    """Stands for a default until it is known whether the strategy or the codec has its own."""

    default: Any

    def __repr__(self) -> str:
        return f"{self.default!r} (unless the strategy or the codec has its own)"


def _strategy_may_say(default: T) -> T:
    stands: Any = _Unless(default)
    option: T = field(default=stands, metadata={STRATEGY_MAY_SAY: default})
    return option


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What is computed, by how many, and how."""

    n_gpus: int | None = None
    """Number of processes, one per GPU (or share of the CPU); a parameter server counts as one. Default: the GPUs
    there are, at least as many as the strategy needs; as many as torchrun or mpirun started."""
    batch_size: int = _strategy_may_say(64)
    """Samples per worker and step."""
    global_batch_size: int | None = None
    """Samples per step of all workers together, instead of batch_size x workers."""
    epochs: int = field(default=10, metadata=MAY_CHANGE_ON_RESUME)
    """Passes over the training set."""
    lr: float = _strategy_may_say(0.1)
    """Learning rate."""
    momentum: float = _strategy_may_say(0.9)
    """Momentum of sgd; the first beta of the adam family."""
    weight_decay: float = _strategy_may_say(0.0)
    """Weight decay of the optimizer."""
    decay: str = "all"
    """What --weight_decay is for: all parameters, or matrices (what has two dimensions or more: no bias, no norm)."""
    optimizer: Named = _strategy_may_say("sgd")  # noqa: RUF009 - a str
    """Any optimizer of torch.optim by its name, such as sgd, adam, adamw or rmsprop; muon, for the matrices of hidden
    layers, with adamw for embeddings and the rest; or yourmodule:function, which is called with a list of pairs (name,
    parameter) and returns a torch optimizer, with groups as it likes. It runs where the algorithm runs it, on the
    server or on every rank."""
    optimizer_options: tuple[str, ...] = ()
    """More of its options, NAME=VALUE, such as nesterov=True or eps=1e-6."""
    codec_scope: str = "tensor"
    """What a codec codes one by one: each tensor of the model (tensor), or all as one vector (vector)."""
    lr_schedule: str = field(default="constant", metadata=MAY_CHANGE_ON_RESUME)
    """How the learning rate changes with the samples processed: constant, step (a tenth after a half, and after three
    quarters) or cosine (down to 0)."""
    warmup: float = field(default=0.0, metadata=MAY_CHANGE_ON_RESUME)
    """Epochs in which the learning rate first rises from 0."""
    clip_norm: float = field(default=0.0, metadata=MAY_CHANGE_ON_RESUME)
    """Bound on the norm of the averaged gradient; 0: none."""
    accumulate: int = 1
    """Compute each step's gradient in this many pieces, one after the other: less memory, the same update."""
    device: str = field(default="auto", metadata=MAY_CHANGE_ON_RESUME)
    """auto (cuda if there is a GPU), cpu or cuda."""
    dtype: str = "float32"
    """Floating-point type of the training: float32 or float64. Steps that are only timed may be in bfloat16 too."""
    amp: str = "none"
    """Mixed precision: compute the forward pass and the loss by torch's autocast in bf16, or, on a GPU, in fp16, whose
    gradients a GradScaler keeps in range. Parameters, gradients, the optimizer and the evaluation stay float32; none:
    no autocast."""
    seed: int = 0
    """Seed of the weights, the order of the samples, and everything else that is random."""
    slow: tuple[str, ...] = field(default=(), metadata=MAY_CHANGE_ALWAYS)
    """Make ranks slow on purpose: RANK:FACTOR, such as 2:5, stretches what rank 2 computes to 5 times its time."""
    jitter: float = field(default=0.0, metadata=MAY_CHANGE_ALWAYS)
    """Stretch what every rank computes at random: each pass by exp(jitter |z|), z standard normal."""
    timeout: float = field(default=120.0, metadata=MAY_CHANGE_ALWAYS)
    """Seconds that any process waits for another before the run is ended; more than the longest step takes."""
    bandwidth: str | None = field(default=None, metadata=MAY_CHANGE_ALWAYS)
    """Hold messages back as on a network card of so much in each direction, headers included, which passes them in
    order: 1gbit, 100mbit, 1.5GB/s. Default: not held back; in a simulation 10gbit."""
    latency: str | None = field(default=None, metadata=MAY_CHANGE_ALWAYS)
    """Hold messages back by so much beside bytes / bandwidth: 50us, 3ms. Default: not held back; in a simulation
    50us."""
    network: str | None = None
    """A file of ranks and links (see docs/virtual_time.md): what a strategy that plans for a network plans for; in a
    simulation the network itself."""
    restarts: int = field(default=0, metadata=OF_THIS_RUN)
    """Start workers that died again, at most N times in all, where a server lets them in. Only with the local
    launcher."""
    launcher: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Who starts the ranks: local (this machine, sharing memory), torchrun, mpi or dask. Default: torchrun or mpirun
    if one of them has started this process, else local."""
    scheduler: str | None = field(default=None, metadata=OF_THIS_RUN)
    """With dask: the address of the scheduler whose workers take the ranks, such as tcp://host:8786. Default: a
    cluster of processes on this machine."""

    @property
    def link(self) -> Link | None:
        """A new link for messages between processes; None: they are not held back. Raises UsageError."""
        if self.bandwidth is None and self.latency is None:
            return None
        return Link(
            math.inf if self.bandwidth is None else PAYLOAD * read_unit("bandwidth", self.bandwidth, bytes_per_second),
            0.0 if self.latency is None else read_unit("latency", self.latency, seconds),
        )

    @property
    def graph(self) -> Graph | None:
        """The graph of links of --network; None: it is not given. Raises UsageError."""
        return None if self.network is None else read_graph(self.network)

    @property
    def slowdowns(self) -> dict[int, float]:
        """How many times its time each slow rank computes. Raises UsageError."""
        factors: dict[int, float] = {}
        for text in self.slow:
            try:
                rank, factor = int(text.split(":")[0]), float(text.split(":", 1)[1])
            except (ValueError, IndexError):
                raise UsageError(f"--slow {text}: must be RANK:FACTOR, such as 2:5") from None
            if not (rank >= 0 and 1 <= factor <= 1000):
                raise UsageError(f"--slow {text}: a rank from 0 on, and a factor from 1 to 1000")
            if rank in factors:
                raise UsageError(f"--slow {text}: rank {rank} is given twice; give it one factor")
            factors[rank] = factor
        return factors

    @property
    def torch_dtype(self) -> torch.dtype:
        """The floating-point type."""
        return DTYPES[self.dtype]


PANELS = (RunOptions, DataOptions, RecordOptions, CheckpointOptions)
_EXAMPLES = {"strategy": "RingAllReduce()", "codec": "TopK(ratio=0.01)"}


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions, DataOptions, RecordOptions, CheckpointOptions):
    """Train one network on several processes of this machine: run(Options(strategy=Downpour(n_push=4), n_gpus=4)).

    `model`, `dataset`, `task` and `optimizer` are names, or functions and classes as --help describes them, wherever
    they are defined; an optimizer of torch.optim may be given as its class. Raises UsageError for anything else.
    """

    strategy: Strategy = field(default_factory=RingAllReduce)
    codec: Codec = field(default_factory=NoCodec)

    def __post_init__(self) -> None:
        for name, kind in (("strategy", Strategy), ("codec", Codec)):
            if not isinstance(given := getattr(self, name), kind):
                raise UsageError(f"--{name}: is {given!r}; give an instance of a class, such as {_EXAMPLES[name]}")
        by_class = {kind: name for name, kind in OPTIMIZERS.items()}
        for name in BY_NAME:
            given = getattr(self, name)
            if not isinstance(given, str | _Unless | None):
                named = by_class.get(given) if name == "optimizer" and isinstance(given, type) else None
                object.__setattr__(self, name, named or UserObject.of(f"--{name}", given))
        own = self.own_defaults
        for option in dataclasses.fields(self):
            if isinstance(stands := getattr(self, option.name), _Unless):
                value = own.get(option.name, stands.default)
                object.__setattr__(self, option.name, value)

    @property
    def own_defaults(self) -> dict[str, Any]:
        """The defaults that the codec and the strategy have of their own; where both have one, the strategy's.

        A momentum of their own is sgd's: another optimizer keeps the default of every run.
        """
        own = {**self.codec.defaults, **self.strategy.traits.defaults}
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

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints are written; only of resolved options."""
        return Path(self.checkpoint_dir or Path(self.results_dir) / f"{self.run_name}.checkpoints")

    def recorded(self) -> dict[str, Any]:
        """Return all options, those of the strategy too, as they are written into records and checkpoints."""
        names = {"strategy": self.strategy.name, "codec": self.codec.name}
        return names | {name: value for _, name, value in self.all_fields()}

    def all_fields(self) -> Iterator[tuple[dataclasses.Field[Any], str, Any]]:
        """Yield each option but the two names, those of the strategy and the codec too: its field, name and value."""
        for owner in (self.strategy, self.codec, self):
            for option in dataclasses.fields(owner):
                if option.name not in ("strategy", "codec"):
                    yield option, option.name, getattr(owner, option.name)

    def plan(self, n_samples: int) -> BatchPlan:
        """Return the batch plan for a training set of `n_samples`. Raises UsageError."""
        assert self.n_gpus is not None, "only of resolved options"
        workers = self.strategy.count_workers(self.n_gpus)
        return BatchPlan(n_samples, workers, self.global_batch_size or self.batch_size * workers, self.seed)

    def make_optimizer(self) -> OptimizerFactory:
        """Return what makes the optimizer from a list of parameters. Raises UsageError."""
        momentum = 0.0 if self.codec.carries_momentum else self.momentum
        return factory(self.optimizer, self.lr, momentum, self.weight_decay, self.optimizer_options, self.decay)

    def make_codec(self) -> CodecFactory | None:
        """Return what makes the codec at an end of a link; None: gradients are sent as they are."""
        workers = self.roles.count("worker")
        return codec_factory(self.codec, Setting(self.codec_scope, self.seed, workers=workers, momentum=self.momentum))

    def coded(self, layout: Layout) -> Coded | None:
        """Return the kind and length of the code of a gradient of this layout, at most; None: there is no codec.

        Where a codec warms up: after that.
        """
        like = torch.empty(0, dtype=self.torch_dtype, device="meta")
        return coded(self.strategy.cost(), self.make_codec(), layout, like, AFTER_WARM_UP)

    def make_schedule(self, n_samples: int) -> Schedule | None:
        """Return the schedule of the learning rate for a training set of `n_samples`; None if it is constant."""
        if self.lr_schedule == "constant" and not self.warmup:
            return None
        return schedule(self.lr_schedule, self.epochs * n_samples, round(self.warmup * n_samples))


def read_unit(option: str, text: str, read: Callable[[str], float]) -> float:
    """Return the value of an option with a unit: see `gradwire.networks.units`. Raises UsageError."""
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"--{option} {text}: {error}") from None


def names_with_strategy_defaults() -> list[str]:
    """Return the names of the options for which a strategy may have a default of its own."""
    return [option.name for option in dataclasses.fields(RunOptions) if STRATEGY_MAY_SAY in option.metadata]


def option_names() -> list[str]:
    """Return the names of the options that every run has, as on the command line without the dashes."""
    return ["strategy", "codec", *(option.name for panel in PANELS for option in dataclasses.fields(panel))]
