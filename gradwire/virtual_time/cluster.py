"""The cluster of a simulation: its network, the seconds that its ranks compute, and the deaths of ranks."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gradwire.core.records import tables
from gradwire.core.records.errors import UsageError
from gradwire.core.records.machine import free_memory
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.tensors import trained
from gradwire.core.training.checks import default_n_gpus
from gradwire.core.training.progress import REPORTER
from gradwire.core.transports.throttle import FAIR
from gradwire.core.workloads import models
from gradwire.core.workloads.data import Data
from gradwire.networks.card import Card
from gradwire.networks.units import PAYLOAD, bytes_per_second, seconds
from gradwire.networks.wing import check_ranks, read_unit
from gradwire.options import Options
from gradwire.stragglers.straggler import Slowdown
from gradwire.strategies import STRATEGIES
from gradwire.virtual_time.calibration import calibrated, calibrated_handling, count_flops
from gradwire.virtual_time.handling import Handling
from gradwire.virtual_time.launcher import Death
from gradwire.virtual_time.network import Linked, Network, OneSwitch, Racks

BANDWIDTH, LATENCY = "10gbit", "50us"  # a simulation's defaults
LATE = 0.8
"""The weight of a message that finds others at its receiver's card, where messages share cards fairly."""
_SHOWN = 6  # cards
_ROUNDING = 1e-9  # of the parts of a pass
_RANK_BYTES, _PEER_BYTES = 100_000, 24  # of memory, that a rank needs at least, and for each rank that it may talk to


def with_link(options: Options) -> Options:
    """Return the options with a simulation's default bandwidth and latency where unset. Raises UsageError."""
    if options.network is None:
        bandwidth, latency = options.bandwidth or BANDWIDTH, options.latency or LATENCY
        return dataclasses.replace(options, bandwidth=bandwidth, latency=latency)
    if options.bandwidth or options.latency:
        raise UsageError("--bandwidth, --latency: --network says them, link by link; leave them out")
    check_ranks(options)
    return options


def fit(options: Options) -> Options:
    """Return the options as a simulation takes them: with a number of ranks, on the CPU. Raises UsageError."""
    if options.device not in ("auto", "cpu", "meta"):
        raise UsageError(
            f"--device {options.device}: a simulation computes on the CPU, or on none (meta); leave it out"
        )
    if getattr(options, "launcher", None) or getattr(options, "scheduler", None):
        raise UsageError("--launcher, --scheduler: a simulation has one process; leave them out")
    if options.restarts:
        raise UsageError("--restarts: in virtual time give --kill RANK@TIME-TIME, which says when it comes back")
    if options.n_gpus is not None and options.n_gpus < 1:
        raise UsageError(f"--n_gpus {options.n_gpus}: must be at least 1")
    graph = options.graph
    n_gpus = options.n_gpus or (graph.ranks if graph else default_n_gpus(options.strategy, "cpu"))
    options = with_link(dataclasses.replace(options, device="cpu", n_gpus=n_gpus))
    check_memory(options)
    return options


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What connects the machines."""

    racks: int = 1
    """Racks into which the ranks are split; 1: all at one switch."""
    rack_bandwidth: str | None = None
    """Of each rack's uplink, for each direction. Default: a card's bandwidth."""
    sharing: Literal["fair", "in_order"] = FAIR
    """How messages share a card: all at once, as with TCP, or one after the other, as train.py --bandwidth holds them
    back."""
    overhead: str = "0s"
    """For how long a message occupies each of its two cards, whatever its length, such as 2us."""

    def make_network(self, options: Options) -> Network:
        """Return the network of the ranks of a run. Raises UsageError."""
        world_size, link = options.world_size, options.link
        shared: dict[str, Any] = {"sharing": self.sharing, "late": LATE}
        shared["overhead"] = read_unit("overhead", self.overhead, seconds)
        if graph := options.graph:
            if self.racks != 1 or self.rack_bandwidth is not None:
                raise UsageError("--racks, --rack_bandwidth: --network says how ranks are connected; leave them out")
            return Linked(graph, **shared)
        assert link is not None, "only of options that fit a simulation"
        card, latency = link.bandwidth, link.latency
        if not 1 <= self.racks <= world_size:
            raise UsageError(f"--racks {self.racks}: must be from 1 to the number of ranks, {world_size}")
        if self.racks == 1:
            if self.rack_bandwidth is not None:
                raise UsageError("--rack_bandwidth: one rack has no uplink; give --racks too")
            return OneSwitch(world_size, card, latency, **shared)
        uplink = card
        if self.rack_bandwidth is not None:
            uplink = PAYLOAD * read_unit("rack_bandwidth", self.rack_bandwidth, bytes_per_second)
        return Racks(world_size, card, latency, self.racks, uplink, **shared)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(NetworkOptions):
    """The machines, one rank on each, and what connects them."""

    compute: str | None = None
    """What the forward and backward pass of a step take, one third and two thirds of it; nothing else takes time.
    Default: as timed on one core of this machine, once, and kept in RESULTS_DIR/calibration.json: every phase, and the
    handling of a message; and acknowledgements take a part of the cards the other way."""
    coding: str | None = None
    """With --compute or --flops: what it takes to encode one gradient, or to decode one. Default: no time."""
    flops: float | None = None
    """Instead of that: floating-point operations a second of a rank; those of the passes are counted."""
    cores: int | None = None
    """Run all ranks on one machine with this many cores, which they share. Default: each rank has a machine."""
    copying: str | None = None
    """With --cores: the bytes a second that a core copies, one where a message is sent, one where it is received, such
    as 1GB/s. Default: copying takes no time."""
    kill: tuple[str, ...] = ()
    """Workers that die: RANK@TIME, such as 3@1.5s; RANK@TIME-TIME: it is started again at the second time."""

    @property
    def is_calibrated(self) -> bool:
        """Whether what takes time is as measured, and not given."""
        return self.compute is None and self.flops is None

    def deaths(self, strategy: Strategy, roles: list[str]) -> list[Death]:
        """Return the deaths of --kill. Raises UsageError."""
        deaths: list[Death] = []
        if self.kill and self.cores is not None:
            raise UsageError("--kill: the cores of --cores do not notice a death; leave one out")
        if self.kill and not strategy.traits.workers_may_die:
            able = [name for name, other in STRATEGIES.items() if other.traits.workers_may_die]
            raise UsageError(f"--kill: {strategy.name} cannot lose a worker; {', '.join(able)} can")
        for text in self.kill:
            rank, _, times = text.partition("@")
            if not re.fullmatch("[0-9]{1,9}", rank) or not times:
                raise UsageError(f"--kill {text[:40]}: must be RANK@TIME or RANK@TIME-TIME, such as 3@1.5s")
            if int(rank) >= len(roles) or roles[int(rank)] != "worker":
                raise UsageError(f"--kill {text}: rank {rank} is no worker")
            if int(rank) == REPORTER:
                raise UsageError(f"--kill {text}: rank {rank} measures and reports, and must live; take another")
            if int(rank) in [death.rank for death in deaths]:
                raise UsageError(f"--kill {text}: rank {rank} is given twice; it can die once")
            death, *returns = [read_unit("kill", time, seconds) for time in times.split("-", 1)]
            if returns and not strategy.traits.workers_may_return:
                raise UsageError(f"--kill {text}: {strategy.name} lets no worker in again; give RANK@TIME")
            if returns and returns[0] < death:
                raise UsageError(f"--kill {text}: it comes back before it dies")
            deaths.append(Death(int(rank), death, *returns))
        return deaths

    def given_seconds(self, count: Callable[[], dict[str, float]]) -> dict[str, float] | None:
        """Return the seconds of each phase of a step, if options set them; `count` returns its passes' operations."""
        if self.compute is not None:
            step = seconds(self.compute)
            phases = {"forward": step / 3, "backward": step * 2 / 3}
        elif self.flops is not None:
            phases = {name: flops / self.flops for name, flops in count().items()}
        else:
            return None
        return phases | ({} if self.coding is None else dict.fromkeys(("encode", "decode"), seconds(self.coding)))

    def machine(self) -> dict[str, Any]:
        """Return what ranks share of a machine, as VirtualTime takes it."""
        copying = 0.0 if self.copying is None else 1 / bytes_per_second(self.copying)
        return {"cores": self.cores, "copying": copying}

    def check_compute(self) -> None:
        """Check the seconds of a step. Raises UsageError."""
        if self.cores is not None and not 1 <= self.cores <= 1_000_000:
            raise UsageError(f"--cores {self.cores}: must be from 1 to 1000000")
        if self.copying is not None:
            read_unit("copying", self.copying, bytes_per_second)
            if self.cores is None or self.sharing != FAIR:
                raise UsageError("--copying: a part of --cores, where messages share cards fairly; give --cores")
        check_speed(self.compute, self.flops)
        if self.coding is not None and self.compute is None and self.flops is None:
            raise UsageError("--coding: is timed on this machine like all phases; give it with --compute or --flops")
        if self.coding is not None:
            read_unit("coding", self.coding, seconds)


# How long a step computes


def check_speed(compute: str | None, flops: float | None) -> None:
    """Check what says how long a step computes. Raises UsageError."""
    if compute is not None and flops is not None:
        raise UsageError("--compute and --flops: each says how long a step takes; give one of them")
    if compute is not None:
        read_unit("compute", compute, seconds)
    if flops is not None and not 1 <= flops <= 1e30:
        raise UsageError(f"--flops {flops}: must be from 1 to 1e30, such as 15e12")


def phase_seconds(cluster: ClusterOptions, options: Options, data: Data) -> dict[str, float]:
    """Return the seconds of each phase of a step, on a rank that is not slow. Raises UsageError, RunFailed."""
    given = cluster.given_seconds(lambda: count_flops(options, data))
    return calibrated(options, data) if given is None else given


def handling(cluster: ClusterOptions, options: Options) -> Handling | None:
    """Return the core time that messages take; None: none. Raises UsageError, RunFailed."""
    if not cluster.is_calibrated:
        return None
    found = calibrated_handling(options)
    return found if cluster.copying is None else dataclasses.replace(found, send_byte=0.0, receive_byte=0.0)


class Compute:
    """How long each rank takes for each phase: what `--slow` and `--jitter` stretch in real runs is stretched here."""

    def __init__(self, options: Options, phases: dict[str, float]) -> None:
        self._phases = phases
        slow = options.slowdowns
        self._stretches = [
            Slowdown(slow.get(rank, 1.0), options.jitter, options.seed + rank) for rank in range(options.world_size)
        ]
        self._begun: dict[tuple[int, str], tuple[float, float]] = {}  # of a pass: its stretch, what of it is done

    def __call__(self, rank: int, phase: str, part: float) -> float:
        """Return the seconds of a phase of one step, `part` of it being done."""
        seconds = self._phases.get(phase, 0.0) * part
        if phase not in ("forward", "backward") or part < _ROUNDING:
            return seconds
        if (rank, phase) not in self._begun:  # one draw, however many parts a pass is spent in
            self._begun[rank, phase] = self._stretches[rank].draw(), 0.0
        stretch, done = self._begun[rank, phase]
        self._begun[rank, phase] = stretch, done + part
        if done + part > 1 - _ROUNDING:
            del self._begun[rank, phase]
        return seconds * stretch


def check_memory(options: Options, data: Data | None = None) -> None:
    """Check that all ranks fit into this machine's memory, with `data` their replicas too. Raises UsageError."""
    n_ranks = options.n_gpus or 1
    needed = n_ranks * (_RANK_BYTES + _PEER_BYTES * n_ranks)
    if data is not None:  # x, g, the optimizer's, a reply
        model = models.seeded(options.model, data, options.seed, options.torch_dtype, options.model_options)
        needed += 4 * n_ranks * sum(p.nbytes for p in trained(model))
    free = free_memory()
    if needed > free:
        raise UsageError(
            f"--n_gpus {n_ranks}: needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free; take "
            "fewer ranks or a smaller --model"
        )


def shares_of(cards: Iterable[Card], seconds: float) -> list[tuple[Card, float]]:
    """Return the cards that something has passed, and the percentage of the time in which each was busy, most first."""
    cards = [card for card in cards if card.nbytes]
    return sorted(((card, 100 * card.busy / max(seconds, 1e-12)) for card in cards), key=lambda pair: -pair[1])


def busiest(cards: Sequence[tuple[Card, float]]) -> str:
    """Return a table of the busiest of these cards and the percentage of the time in which each was busy."""
    rows = [["busiest cards", "MB", "% of the time"]]
    rows += [
        [card.name, tables.number(card.nbytes, scale=1e-6), tables.number(percent)] for card, percent in cards[:_SHOWN]
    ]
    return tables.aligned(rows, left=1) if len(rows) > 1 else "busiest cards  nothing was sent"
