"""The options of a run: one dataclass, from which the command line is made."""

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from tyro.conf import Suppress

from launchers import find_launcher
from records.errors import UsageError
from strategies import STRATEGIES, OptimizerFactory, Strategy
from strategies.backup_workers import BackupParamServer
from strategies.inconsistent_reads import InconsistentReadsServer
from training.checks import DTYPES, check_values
from training.optimizers import factory
from training.schedules import schedule
from workloads.batches import BatchPlan

_WITH_OPTIONS = STRATEGIES | {"param_server": BackupParamServer}  # strategies, such as have options of their own
_FAMILY = {name for kind in _WITH_OPTIONS.values() for name in kind.takes}


@dataclass(frozen=True)
class Options:
    """Train one network on several processes of this machine."""

    strategy: str = "ring_all_reduce"
    """How the processes work together: single, param_server, async_param_server, downpour,
    ring_all_reduce, naive_all_reduce or none."""
    n_gpus: int | None = None
    """Number of processes, one per GPU (or share of the CPU); a parameter server counts as one. Default: the GPUs
    there are, at least 2 (under torchrun: what it started; for single: 1)."""
    backup_workers: int = 0
    """For param_server: close a step without its so many slowest workers."""
    max_staleness: int | None = None
    """For async_param_server: how many of its own steps a worker may be ahead of the slowest. Default: any number."""
    aggregate: int = 1
    """For async_param_server: how many gradients make one update."""
    reads: str = "consistent"
    """For async_param_server: consistent (a worker gets x as it is between two updates) or inconsistent (it reads the
    server's memory, also while it is written)."""
    n_push: int = 1
    """For downpour: a worker sends its movement every so many steps."""
    n_pull: int = 1
    """For downpour: a worker takes the server's parameters every so many steps."""
    restarts: int = 0
    """For async_param_server and downpour: start workers that died again, so many times in all."""
    replay: str | None = None
    """Run RESULTS_DIR/RUN_NAME again, its gradients in the order in which they came then: the same parameters."""
    batch_size: int = 64
    """Samples per worker and step."""
    global_batch_size: int | None = None
    """Samples per step of all workers together, in the place of batch_size x workers."""
    workers_like: int = 1
    """For single: take the batches that this many workers would take together, so that the runs can be compared."""
    epochs: int = 10
    """Passes over the training set."""
    lr: float = 0.1
    """Learning rate."""
    momentum: float = 0.9
    """Momentum of sgd; the first beta of the adam family."""
    weight_decay: float = 0.0
    """Weight decay (L2) of the optimizer."""
    optimizer: str = "sgd"
    """Any optimizer of torch.optim by its name, such as sgd, adam, adamw or rmsprop. It runs where the algorithm runs
    it, on the server or on every rank, and sees all parameters as one vector."""
    optimizer_options: tuple[str, ...] = ()
    """More of its options, NAME=VALUE, such as nesterov=True or eps=1e-6."""
    lr_schedule: str = "constant"
    """How the learning rate changes with the samples processed: constant, step (a tenth after a half, and after three
    quarters) or cosine (down to 0)."""
    warmup: float = 0.0
    """Epochs in which the learning rate first rises from 0."""
    clip_norm: float = 0.0
    """Bound on the norm of the averaged gradient; 0: none."""
    accumulate: int = 1
    """Compute each step's gradient in this many pieces, one after the other: less memory, the same update."""
    dataset: str = "digits"
    """digits (comes with scikit-learn), mnist, fashion_mnist, cifar10, cifar100, svhn, imagefolder, synthetic, or
    yourmodule:function, which returns (train_x, train_y, test_x, test_y) or two map-style datasets."""
    data_dir: str = "data"
    """Where data sets lie, or are downloaded to; for imagefolder the folder that holds train/ and val/."""
    download: bool = False
    """Let torchvision download the data set if it is not there."""
    train_size: int = 0
    """Use only this many training samples; 0: all."""
    model: str = "mlp"
    """mlp, lenet, mobilenet_v2, resnet18, resnet34, resnet50, vgg11, alexnet, or yourmodule:function, which is called
    with (input_shape, n_classes) and returns the network."""
    device: str = "auto"
    """auto (cuda if there is a GPU), cpu or cuda."""
    dtype: str = "float32"
    """Floating-point type of the training: float32 or float64."""
    seed: int = 0
    """Seed of the weights, the order of the samples, and everything else that is random."""
    slow: tuple[str, ...] = ()
    """Make ranks slow on purpose: RANK:FACTOR, such as 2:5, stretches what rank 2 computes to 5 times its time."""
    jitter: float = 0.0
    """Stretch what every rank computes at random: each pass by exp(jitter |z|), z standard normal."""
    timeout: float = 120.0
    """Seconds that any process waits for another before the run is ended; more than the longest step takes."""
    results_dir: str = "results"
    """Where the run's CSV, JSON and events are written."""
    run_name: str | None = None
    """Name of these files. Default: strategy, number of processes, data set, model, date and time."""
    events: bool = True
    """Record every phase and message; without, the tables have losses and accuracy only."""
    checkpoint_every: int = 0
    """Write a checkpoint after so many steps; 0: never."""
    checkpoint_dir: str | None = None
    """Where checkpoints are written. Default: RESULTS_DIR/RUN_NAME.checkpoints."""
    checkpoint_keep: int = 3
    """How many checkpoints are kept, the newest."""
    evaluator: bool = False
    """Start evaluate.py beside the training: it scores each checkpoint as it appears, on one core."""
    resume: str | None = None
    """Go on from this checkpoint, or from the newest in this folder, with the options that it was made with."""
    save: str | None = None
    """Write the final model to this path, as an ordinary state_dict."""
    builtin: Suppress[type[Strategy] | None] = None
    """Set by the scripts of the built-in baselines: what runs in the place of a strategy of ours."""

    def resolve(self) -> "Options":
        """Return the options with every default filled in, fit to this machine. Raises UsageError."""
        check_values(self, option_names())
        n_gpus = self.n_gpus if self.n_gpus is not None else self._default_n_gpus()
        launcher = find_launcher()
        started = launcher.world_size
        if started is not None and self.builtin:
            raise UsageError(f"{self.builtin.name} starts its processes itself; run it without {launcher.name}")
        if started is not None and n_gpus != started:
            raise UsageError(f"--n_gpus {n_gpus}: {launcher.name} started {started} processes; leave --n_gpus out")
        kind, device = self.kind, self._device()
        if kind.max_ranks is not None and n_gpus > kind.max_ranks:
            cure = "use --workers_like to give it their batches" if self.strategy == "single" else "take fewer"
            raise UsageError(f"--n_gpus {n_gpus}: {self.strategy} is {kind.max_ranks} process; {cure}")
        if n_gpus < kind.min_ranks:
            raise UsageError(f"--n_gpus {n_gpus}: {self.strategy} needs at least {kind.min_ranks} processes")
        if n_gpus > 100:
            raise UsageError(f"--n_gpus {n_gpus}: one machine, at most 100 processes")
        self._check_stragglers(kind.roles(n_gpus))
        self._check_family(kind)
        workers = kind.roles(n_gpus).count("worker")
        if self.backup_workers >= workers:
            raise UsageError(f"--backup_workers {self.backup_workers}: must be fewer than the {workers} workers")
        self.make_optimizer()
        name = f"{self.strategy}-{n_gpus}-{self.dataset}-{self.model}-{datetime.now():%Y%m%d-%H%M%S-%f}"
        return dataclasses.replace(
            self, n_gpus=n_gpus, device=device, run_name=self.run_name or name.replace(":", ".").replace("/", ".")[:200]
        )

    def _default_n_gpus(self) -> int:
        if self.strategy == "single":
            return 1
        return find_launcher().world_size or max(2, torch.cuda.device_count() if self._device() == "cuda" else 2)

    def _device(self) -> str:
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("--device cuda: torch finds no GPU here; use --device cpu, or a torch built for CUDA")
        return self.device

    def _check_family(self, kind: type[Strategy]) -> None:
        """Check the options that are not every strategy's."""
        for option in dataclasses.fields(Options):
            value = getattr(self, option.name)
            if option.name in _FAMILY and value != option.default and option.name not in kind.takes:
                has = [name for name, one in _WITH_OPTIONS.items() if option.name in one.takes]
                raise UsageError(
                    f"--{option.name} {value}: not an option of --strategy {self.strategy}, but of {', '.join(has)}"
                )
        if self.restarts and not (kind.own_pace and kind.workers_may_die):
            able = ", ".join(name for name, one in STRATEGIES.items() if one.own_pace and one.workers_may_die)
            raise UsageError(
                f"--restarts {self.restarts}: --strategy {self.strategy} lets no worker in again; {able} do"
            )
        launcher = find_launcher()
        for name, wanted, possible in (
            ("restarts", self.restarts, launcher.restarts),
            ("reads", self.reads == "inconsistent", launcher.shared_memory),
        ):
            if wanted and not possible:
                raise UsageError(f"--{name}: needs shared memory; run it without {launcher.name}")

    def _check_stragglers(self, roles: list[str]) -> None:
        if not (self.slow or self.jitter):
            return
        if self.kind.one_for_all:
            option = "slow" if self.slow else "jitter"
            raise UsageError(f"--{option}: {self.strategy} is one process, in which no worker can be slow alone")
        for rank in self.slowdowns:
            if not (rank < len(roles) and roles[rank] == "worker"):
                workers = ", ".join(str(rank) for rank, role in enumerate(roles) if role == "worker")
                raise UsageError(f"--slow {rank}: not a rank that computes; those are {workers}")

    @property
    def world_size(self) -> int:
        """The number of processes; only of resolved options."""
        return len(self.roles)

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
                raise UsageError(f"--slow {text}: rank {rank} is there twice; give it one factor")
            factors[rank] = factor
        return factors

    @property
    def kind(self) -> type[Strategy]:
        """The class of the strategy, or of the built-in baseline."""
        if self.strategy == "param_server" and self.backup_workers:
            return BackupParamServer
        if self.strategy == "async_param_server" and self.reads == "inconsistent":
            return InconsistentReadsServer
        return self.builtin or STRATEGIES[self.strategy]

    @property
    def roles(self) -> list[str]:
        """Each rank's role, "worker" or "server"."""
        assert self.n_gpus is not None, "only of resolved options"
        return self.kind.roles(self.n_gpus)

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints are written; only of resolved options."""
        return Path(self.checkpoint_dir or Path(self.results_dir) / f"{self.run_name}.checkpoints")

    def recorded(self) -> dict[str, Any]:
        """Return the options as they are written into records and checkpoints."""
        return {name: getattr(self, name) for name in option_names()}

    @property
    def torch_dtype(self) -> torch.dtype:
        """The floating-point type."""
        return DTYPES[self.dtype]

    def plan(self, n_samples: int) -> BatchPlan:
        """Return the batch plan for a training set of `n_samples`. Raises UsageError."""
        workers = self.roles.count("worker")
        if self.world_size == 1:  # one process that takes the batches of several workers
            workers = self.workers_like if self.strategy == "single" else self.n_gpus or 1
        return BatchPlan(n_samples, workers, self.global_batch_size or self.batch_size * workers, self.seed)

    def make_strategy(self, n_samples: int) -> Strategy:
        """Return the strategy, with its optimizer, for a training set of `n_samples`."""
        changes = self.lr_schedule != "constant" or self.warmup
        total, warmup = self.epochs * n_samples, round(self.warmup * n_samples)
        strategy = self.kind(
            self.make_optimizer(), self.clip_norm, schedule(self.lr_schedule, total, warmup) if changes else None
        )
        for name in strategy.takes:
            setattr(strategy, name, getattr(self, name))
        return strategy

    def make_optimizer(self) -> OptimizerFactory:
        """Return what makes the optimizer from a list of parameters. Raises UsageError."""
        return factory(self.optimizer, self.lr, self.momentum, self.weight_decay, self.optimizer_options)


def option_names() -> list[str]:
    """Return the names of the options, as on the command line without the dashes."""
    return [field.name for field in dataclasses.fields(Options) if field.name != "builtin"]
