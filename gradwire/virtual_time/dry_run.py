"""A dry run: steps of a model that fits nowhere, on torch's meta device, in virtual time: their seconds and bytes."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy import cost_model
from gradwire.core.strategy.layout import Layout
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.training.checks import resolve
from gradwire.core.transports.timing import at_intervals
from gradwire.diagnosis.memory_use import MemoryUse
from gradwire.networks.card import Card
from gradwire.options import Options
from gradwire.stragglers.wing import check_slow
from gradwire.virtual_time import footprints
from gradwire.virtual_time.cluster import ClusterOptions, Compute, busiest, fit, shares_of
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.meta_models import count_flops, sizes_of
from gradwire.virtual_time.network import Network
from gradwire.virtual_time.steps import Sizes, Steps, StepsJob, seconds_of_a_step, take_steps

_MEAN = (
    "strategy", "n_gpus", "batch_size", "global_batch_size", "lr", "momentum", "weight_decay", "optimizer",
    "optimizer_options", "clip_norm", "codec_scope", "device", "dtype", "seed", "slow", "jitter", "timeout",
    "bandwidth", "latency", "network", "model", "results_dir", "memory", "amp",
)  # fmt: skip
"""The options of a run that mean something where nothing is trained."""
_SEVERAL = 40  # steps, or some more
_LOOK_S = 0.3  # between two updates of the progress bar


@dataclass(frozen=True)
class DryRun:
    """Some steps on torch's meta device, in virtual time."""

    options: Options
    sizes: Sizes
    phases: dict[str, float]  # seconds of a step
    results: list[Steps]  # of each rank
    memory: list[int]  # bytes of the vectors and the optimizer's state, of each rank
    cards: list[tuple[Card, float]]  # and the percentage of the steps' time in which each was busy, the busiest first

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return seconds_of_a_step(self.results, self.options.roles, period(self.options.strategy))

    @property
    def compute(self) -> float:
        """The seconds that the two passes of a step take."""
        return self.phases["forward"] + self.phases["backward"]

    @property
    def steps(self) -> float:
        """How many steps were taken, on average over the workers; where steps differ, in whole periods if in any."""
        taken, repeats = [len(of_worker.ends) for of_worker in self._of_workers], period(self.options.strategy)
        return sum(n - n % repeats or n for n in taken) / len(taken)

    @property
    def _of_workers(self) -> list[Steps]:
        return [steps for steps, role in zip(self.results, self.options.roles, strict=True) if role == "worker"]

    @property
    def is_typical(self) -> bool:
        """Whether one step is like all: nothing is random, all have one pace, and all workers end it together."""
        if self.options.jitter or self.options.strategy.traits.asynchronous:
            return False
        ends = [of_worker.ended for of_worker in self._of_workers]
        return max(ends) - min(ends) <= 0.001 * self.seconds

    def figures(self) -> dict[str, Any]:
        """Return the columns of a sweep."""
        return {
            "workers": self.options.roles.count("worker"),
            "seconds_a_step": self.seconds,
            "compute_s": self.compute,
            "gb_sent_a_step": sum(result.nbytes for result in self.results) / self.steps / 1e9,
            "messages_a_step": sum(result.messages for result in self.results) / self.steps,
            "gb_of_memory": max(self.memory) / 1e9,
            "busiest_card": f"{self.cards[0][0].name}, {self.cards[0][1]:.0f} %" if self.cards else "none",
        }

    def text(self) -> str:
        """Return it as a few lines of text."""
        options, figures = self.options, self.figures()
        n, roles = self.sizes.parameters, options.roles
        memory = []
        for role in dict.fromkeys(roles):
            sizes = [size / 1e9 for size, of in zip(self.memory, roles, strict=True) if of == role]
            least, most = f"{min(sizes):.4g}", f"{max(sizes):.4g}"
            memory.append(f"{role} {least if least == most else f'{least} to {most}'}")
        held = f"GB of memory    {', '.join(memory)}: parameters, gradients, state of the optimizer, the strategy's"
        samples = samples_of_a_worker(options) * roles.count("worker")
        took = [f"took            {choice.text()}"] if (choice := self.results[0].choice) else []
        return "\n".join(
            [
                f"strategy {options.strategy.name}, n_gpus {options.n_gpus}, time virtual, "
                f"{n:.4g} parameters ({n * options.torch_dtype.itemsize / 1e9:.4g} GB)",
                f"seconds a step  {self.seconds:.6g}, of which {figures['compute_s']:.4g} are computing",
                f"samples/s       {f'{samples / self.seconds:.6g}' if self.seconds else '-'}",
                *took,
                f"GB sent a step  {figures['gb_sent_a_step']:.6g} in {figures['messages_a_step']:.7g} messages",
                footprints.summary(options, self.sizes, self.counted) if self.counted else held,
                busiest(self.cards),
            ]
        )

    @property
    def counted(self) -> list[MemoryUse]:
        """The counted memory of each rank, with --memory."""
        return [result.memory for result in self.results if result.memory]


def evaluate_cost(options: Options, layout: Layout) -> tuple[float, float]:
    """Return the messages and bytes that all ranks send in a step, of parameters of this layout, in closed form."""
    strategy, roles, code = options.strategy, options.roles, options.coded(layout)
    width = options.torch_dtype.itemsize
    traffic = strategy.cost(code.kind if code else None).by_role
    nbytes, blocks = layout.n * width, len(layout.names)
    counts = [
        cost_model.evaluate_cost(strategy, traffic[role], len(roles), nbytes, code, width, blocks) for role in roles
    ]
    return sum(messages for messages, _ in counts), sum(nbytes for _, nbytes in counts)


def period(strategy: Strategy) -> int:
    """Return after how many steps a strategy does the same again: the options by which its messages are divided.

    Or some times as many: they may be divided by (3 n_push).
    """
    options = {option.name for option in dataclasses.fields(strategy)}
    formulas = " ".join(cost.messages for cost in strategy.cost().by_role.values())
    divisors = re.findall(r"/ \(?(?:(\d+) )?(\w+)", formulas)
    return math.lcm(*(int(times or 1) * getattr(strategy, name) for times, name in divisors if name in options))


def samples_of_a_worker(options: Options) -> int:
    """Return the samples of a worker in a step."""
    if options.global_batch_size is None:
        return options.batch_size
    workers = options.strategy.count_workers(options.n_gpus or 1)
    if options.global_batch_size % workers:
        raise UsageError(
            f"--global_batch_size {options.global_batch_size}: {workers} workers cannot share it evenly; "
            f"take a multiple of {workers}"
        )
    return options.global_batch_size // workers


def check(
    options: Options, cluster: ClusterOptions, parameters: float | None, steps: int | None, layers: int = 1
) -> Options:
    """Find whatever is wrong before anything starts; return the options, filled in. Raises UsageError."""
    options = check_model(options, cluster, parameters, steps, layers)
    if cluster.kill:
        raise UsageError("--kill: no rank can die on the meta device; leave it out")
    if cluster.compute is None and cluster.flops is None:
        raise UsageError(
            "--compute: nothing is computed on the meta device; say how long a step takes, by --compute 0.4s or "
            "--flops 15e12"
        )
    cluster.check_compute()
    roles = options.roles
    size = RunSize(len(roles), roles.count("worker"), footprints.NO_EPOCH, shared_memory=False)
    check_strategy(options.strategy, dataclasses.replace(size, optimizer=options.make_optimizer()))
    phases_of(options, cluster, parameters)
    return options


def check_model(
    options: Options, cluster: ClusterOptions, parameters: float | None, steps: int | None, layers: int
) -> Options:
    """Check what does not depend on how long a step computes; return the options, filled in. Raises UsageError."""
    _check_options(options, parameters, steps, layers)
    launcher = VirtualTime(cluster.make_network(options), lambda *_: 0.0).launcher()
    options = resolve(options, launcher)
    check_slow(options)
    footprints.state_bytes(options, 2)
    if not options.codec.on_meta:
        raise UsageError(
            f"--codec {options.codec.name}: how long its codes are depends on the elements, of which there are none on "
            "the meta device; take another"
        )
    if options.codec.tensors_only and parameters is not None:
        raise UsageError(
            f"--codec {options.codec.name}: codes matrices, and --parameters says of none; give --device meta, --model"
        )
    sizes_of(options, parameters, layers)
    return options


def dry_run(
    options: Options,
    cluster: ClusterOptions,
    parameters: float | None,
    steps: int | None = None,
    quiet: bool = False,
    layers: int = 1,
) -> DryRun:
    """Take `steps` steps of a model with `parameters` and `layers`, or of --model.

    Raises UsageError, RunFailed.

    By default one step, or, where it is not like those that follow, about `_SEVERAL`; with --memory two, as the
    optimizer's state is made in the first.
    """
    options = check(fit(options), cluster, parameters, steps, layers)
    sizes, samples = sizes_of(options, parameters, layers), samples_of_a_worker(options)
    phases = phases_of(options, cluster, parameters)
    repeats = period(options.strategy)
    done = _take(options, cluster, phases, StepsJob(options, sizes, samples, steps or 1 + options.memory), quiet)
    if steps is None and not (repeats == 1 and done.is_typical):
        several = 4 * repeats * math.ceil(_SEVERAL / repeats / 4) + 1
        return _take(options, cluster, phases, StepsJob(options, sizes, samples, several), quiet)
    return done


def phases_of(options: Options, cluster: ClusterOptions, parameters: float | None) -> dict[str, float]:
    """Return the seconds of the two passes of a step. Raises UsageError."""
    phases = cluster.given_seconds(lambda: count_flops(options, parameters, samples_of_a_worker(options)))
    assert phases is not None, "`check` refuses it"
    return phases


def _take(options: Options, cluster: ClusterOptions, phases: dict[str, float], job: StepsJob, quiet: bool) -> DryRun:
    network = cluster.make_network(options)
    time = VirtualTime(network, Compute(options, phases), compute=False, **cluster.machine())
    passed: dict[str, list[tuple[float, float]]] = {}
    reports = Counter[str]()

    def note(_: int, what: str) -> None:
        reports[what] += 1
        if reports[what] == (1 if what == "begun" else options.world_size):  # the first has begun, the last has ended
            passed[what] = [(card.busy, card.nbytes) for card in network.cards()]

    with _progress(options, job, network, quiet):
        results = time.launch(
            take_steps, options.world_size, job, device="meta", roles=options.roles, on_report=note, seed=options.seed
        )
    assert time.ranks is not None
    held = [time.ranks.transports[rank].bytes_allocated for rank in range(options.world_size)]
    took = max(result.ended for result in results) - max(result.begun for result in results)
    both = zip(network.cards(), passed["begun"], passed["ended"], strict=True)
    of_steps = [
        Card(card.name, card.bandwidth, busy=end[0] - start[0], nbytes=end[1] - start[1]) for card, start, end in both
    ]
    memory = [
        result.memory.peak if result.memory else vectors + result.optimizer_bytes
        for vectors, result in zip(held, results, strict=True)
    ]
    return DryRun(options, job.sizes, phases, results, memory, shares_of(of_steps, took))


@contextmanager
def _progress(options: Options, job: StepsJob, network: Network, quiet: bool) -> Iterator[None]:
    """Show, during the block, the share of the bytes that was sent."""
    nbytes = job.sizes.parameters * options.torch_dtype.itemsize
    total = job.steps * evaluate_cost(options, job.sizes.layout)[1] + (options.world_size - 1) * nbytes
    with tqdm(
        total=round(total), desc=options.strategy.name, unit="B", unit_scale=True,
        leave=False, disable=True if quiet else None,
    ) as bar:  # fmt: skip

        def look() -> None:
            bar.update(min(sum(card.nbytes for card in network.sends), bar.total) - bar.n)

        with at_intervals(_LOOK_S, look):
            yield


def _check_options(options: Options, parameters: float | None, steps: int | None, layers: int) -> None:
    """Reject options that have no meaning without training. Raises UsageError."""
    default = Options(strategy=options.strategy)
    for _, name, value in options.all_fields():
        own = name in {field.name for part in (options.strategy, options.codec) for field in dataclasses.fields(part)}
        if name not in _MEAN and not own and value != getattr(default, name):
            raise UsageError(f"--{name} {value}: nothing is trained on the meta device; leave it out")
    if parameters is not None and not (1 <= parameters <= 1e15 and parameters == int(parameters)):
        raise UsageError(f"--parameters {parameters:g}: must be a whole number from 1 to 1e15, such as 7e9")
    if parameters is not None and options.model != default.model:
        raise UsageError(f"--model {options.model}: --parameters says all that is known of the model; leave one out")
    if parameters is None and layers != 1:
        raise UsageError(f"--layers {layers}: of --parameters; --model {options.model} has its own; leave one out")
    if parameters is not None and not 1 <= layers <= min(parameters, 1000):
        raise UsageError(f"--layers {layers}: must be from 1 to 1000, and at most --parameters")
    if steps is not None and not 1 <= steps <= 10_000:
        raise UsageError(f"--steps {steps}: must be from 1 to 10000")
