"""What a strategy is: what happens between `backward()` and the next `forward()`, and all that is said of it."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import getfile
from types import FunctionType
from typing import Any, ClassVar

import torch

from compression import Codec
from records.errors import RunFailed
from strategies.collectives import broadcast
from strategies.common.coding import CodecFactory, Encoder
from strategies.common.descent import Descent, OptimizerFactory, Schedule, check_factory
from strategies.common.replica import Replica
from strategies.common.traffic import Coded, Traffic
from transports.base import STEPS_TAKEN, Transport


@dataclass(frozen=True)
class RunSize:
    """How large a run is, and where it runs: what the options of a strategy must fit."""

    n_ranks: int
    workers: int
    steps_per_epoch: int
    shared_memory: bool = True
    replayed: bool = False  # whether another run's order of messages is repeated
    held_back: bool = False  # whether messages are held back, as on a network


@dataclass(kw_only=True)
class Strategy(ABC):
    """One rank's part in an algorithm; its fields are the algorithm's options. A training loop is the same for all:

        strategy.start(replica, transport, optimizer)
        for x, y in shard:
            strategy.begin_step(len(x))
            loss(model(x), y).backward()
            strategy.step(len(x))
        strategy.finish()

    and on a server rank `strategy.serve()` stands for the `for` loop.

    The first line of a class's docstring describes it in `--list`; the docstring below each field is the help of the
    option. A field may say when its value may be another one, by its metadata: see `MAY_CHANGE_ON_RESUME`.
    """

    name: ClassVar[str]  # on the command line: its module's name; yourmodule:YourClass outside this package
    traffic: ClassVar[Mapping[str, Traffic]]  # by role, in closed form
    critical_path: ClassVar[Traffic | None] = None  # of a synchronous one: what of a step is one after the other
    defaults: ClassVar[Mapping[str, Any]] = {}  # options of the run for which this strategy has a default of its own
    min_ranks: ClassVar[int] = 1
    max_ranks: ClassVar[int | None] = None
    asynchronous: ClassVar[bool] = False  # workers do not wait for each other: the order of arrival decides the result
    replicas_agree: ClassVar[bool] = True  # whether all replicas are bit-identical when an epoch has ended
    workers_may_die: ClassVar[bool] = False  # whether the servers, or without one rank 0, hold all that matters, so
    # that a run can lose the other workers
    workers_may_return: ClassVar[bool] = False  # whether one that has died can be started again and take part
    staleness_of: ClassVar[str] = "gradient"  # what a server applies one by one, whose staleness is recorded: or "push"
    server_updates: ClassVar[bool] = False  # whether only servers run the optimizer, so that its options are theirs
    exact: ClassVar[Mapping[str, Any]] = {}  # own options with which a synchronous one takes the steps of one process
    coded: ClassVar[Mapping[str, Mapping[str, Traffic]]] = {}  # by the kinds of codecs that can carry its gradients:
    # what each role then sends
    coded_path: ClassVar[Mapping[str, Traffic]] = {}  # likewise: what of a step is one after the other
    cuts_x = False  # whether ranks update parts of x, perhaps by an option: then no optimizer may look at all of it

    def __init_subclass__(cls) -> None:
        package, _, module = cls.__module__.rpartition(".")
        if "name" not in vars(cls):
            cls.name = module if package.split(".")[0] == "strategies" else f"{cls.__module__}:{cls.__qualname__}"

    # What is known before it starts

    @classmethod
    def describe(cls) -> str:
        """Return the first lines of the docstring: what the algorithm does."""
        return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())

    @classmethod
    def sources(cls) -> set[str]:
        """Return the files in which the algorithm is written: of its class and those that it extends, and collectives.

        What a run records is noted beside the line of these that was at work.
        """
        functions = [one for kind in cls.__mro__ for one in vars(kind).values() if isinstance(one, FunctionType)]
        files = {function.__code__.co_filename for function in functions} | {getfile(broadcast)}
        # Of the functions that @dataclass makes, some have no file, and the others that of its own module.
        return {file for file in files if not file.startswith("<") and file != dataclasses.__file__}

    def roles(self, world_size: int) -> list[str]:
        """Return each rank's role: "worker" or "server"."""
        return ["worker"] * world_size

    def count_workers(self, n_gpus: int) -> int:
        """Return into how many parts, one for each worker, a global batch is cut."""
        return self.roles(n_gpus).count("worker")

    def traffic_with(self, codec: Coded | None) -> Mapping[str, Traffic]:
        """Return what each role sends, its gradients as they are or coded. Raises KeyError: not by such a codec."""
        return self.traffic if codec is None else self.coded[codec.kind]

    def path_with(self, codec: Coded | None) -> Traffic | None:
        """Return what of a step is one after the other, with gradients as they are or coded; None: not known."""
        return self.critical_path if codec is None else self.coded_path.get(codec.kind)

    def closed_form(
        self, formula: Traffic, n_gpus: int, nbytes: int, codec: Coded | None = None
    ) -> tuple[float, float]:
        """Return the messages and bytes that a formula of this strategy gives, for `nbytes` of parameters."""
        options = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        return formula.count({**options, "N": n_gpus, "P": nbytes, "C": codec.nbytes if codec else nbytes})

    def predict(
        self,
        n_gpus: int,
        nbytes: int,
        compute: float,
        bandwidth: float,
        latency: float,
        codec: Coded | None = None,
    ) -> float | None:
        """Return the seconds of a step in the latency-bandwidth model (Hockney, 1994); None where it has none.

        compute + messages latency + bytes / bandwidth, of the messages and bytes of the critical path, as in Paleo (Qi
        et al., ICLR 2017); where these travel `while_computing`, the greater of `compute` and the rest. `bandwidth` in
        bytes a second; `compute` and `latency` in seconds. Without `--clip_norm`, for which some strategies send more;
        the codec computes in `compute`.
        """
        path = self.path_with(codec)
        if path is None:
            return None
        if n_gpus == 1:
            return compute  # nobody is there to send to
        messages, on_the_way = self.closed_form(path, n_gpus, nbytes, codec)
        sending = messages * latency + on_the_way / bandwidth
        return max(compute, sending) if path.while_computing else compute + sending

    @property
    def state_bytes(self) -> int:
        """The memory of the optimizer's state, such as momentum, on this rank, and of what its codec keeps."""
        return self.descent.state_bytes + (self.encoder.codec.nbytes if self.encoder else 0)

    def check(self, run: RunSize) -> None:  # noqa: B027 - most have nothing to check
        """Check the options against the size of the run. Raises UsageError: see `between`."""

    @property
    def own_codec(self) -> Codec | None:
        """What the algorithm itself sends vectors by, for closed forms; most send them as they are."""
        return None

    @property
    def own_scope(self) -> str:
        """What it codes one by one: see `compression.Setting`."""
        return "tensor"

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027 - most take any
        """Check that the algorithm can take its steps by this optimizer. Raises UsageError."""

    def notice(self, n_gpus: int) -> str:
        """Return what a user must know of a run, in one line; most have nothing to say."""
        return ""

    # The run

    def start(
        self,
        replica: Replica,
        transport: Transport,
        optimizer: OptimizerFactory,
        clip_norm: float = 0.0,
        schedule: Schedule | None = None,
        state: dict[str, Any] | None = None,
        after_update: Callable[[], None] = lambda: None,
        codec: CodecFactory | None = None,
        seed: int = 0,
    ) -> None:
        """Give the strategy its run. Called once, by all ranks.

        `optimizer`, `clip_norm`, `schedule`: see `Descent`. `state`: what `state_dict` returned, to continue from
        there. `after_update` is called on a server after each of its updates, when the workers have their replies.
        `codec`: what gradients are sent by, of a kind that this strategy carries; None: as they are. `seed`: of what
        the algorithm draws, the same on all ranks. Raises UsageError if `optimizer` needs more than one vector of
        parameters, PeerLost, WaitTimeout.
        """
        check_factory(optimizer)
        self.replica = replica
        self.transport = transport
        self.until: float = math.inf  # samples with which the epoch ends, where a server ends it
        self.seed = seed
        self.meters: dict[str, float] = {}  # what it has measured of itself in an epoch: marks, see `records.events`
        self.codec = codec
        self.encoder: Encoder | None = None  # where this rank sends codes
        transport.recorder.follow(self.sources())
        self.descent = Descent([replica.x], optimizer, clip_norm, schedule, transport.recorder)
        self.descent.after_update = after_update
        self.step = self._collecting(self.step)  # type: ignore[method-assign]
        self.finish = self._comparing(self.finish)  # type: ignore[method-assign]
        self.setup()
        if state is not None:
            self.load_state_dict(state)
        self.join(resumed=state is not None)

    def _collecting(self, step: Callable[[int], None]) -> Callable[..., None]:
        """Return `step`, which raises RunFailed if it has not collected the gradient: then it has trained on none."""

        def checked(n_samples: int) -> None:
            self.replica.collected = False
            self.transport.steps += 1
            self.transport.owes = "finish()"
            step(n_samples)
            if not self.replica.collected:
                raise RunFailed(
                    f"{type(self).__name__}.step() did not call self.replica.collect(), so it trained without the "
                    "gradient of the last backward pass; let it begin with g = self.replica.collect()"
                )

        return checked

    def _comparing(self, finish: Callable[[], None]) -> Callable[[], None]:
        """Return `finish`, which first compares the steps of all ranks where nobody has planned them."""

        def checked() -> None:
            all_in_step = not self.asynchronous and set(self.roles(self.transport.world_size)) == {"worker"}
            if all_in_step and self.transport.world_size > 1 and math.isinf(self.until):
                self._compare_steps()
            finish()
            self.transport.steps, self.transport.owes = 0, ""

        return checked

    def _compare_steps(self) -> None:
        """Tell the right neighbour and rank 0 how many steps this rank took, and compare. Raises RunFailed."""
        transport, N, r = self.transport, self.transport.world_size, self.transport.rank
        for peer in {(r + 1) % N, 0} - {r}:
            transport.isend(None, peer, STEPS_TAKEN, n=transport.steps)
        for peer in transport.peers if r == 0 else [(r - 1) % N]:
            transport.compare_steps(transport.recv(peer, STEPS_TAKEN))

    def setup(self) -> None:  # noqa: B027 - most have nothing more
        """Allocate the algorithm's own state. Called by `start`, by all ranks."""

    def join(self, resumed: bool) -> None:
        """Give every rank all of the module's state of rank 0, unless each has its own of a resumed run."""
        if not resumed:
            broadcast(self.replica.x, self.transport, "initial parameters")
            broadcast(self.replica.b, self.transport, "initial buffers")
            if (others := self.replica.others).numel():
                broadcast(others, self.transport, "initial others")
                self.replica.others = others

    def begin_step(self, n_samples: int) -> None:  # noqa: B027 - most have nothing to do before `step`
        """Know that the next backward pass ends the gradient, the mean over `n_samples`, that `step` is to take.

        A loop that does not call it loses no more than what an algorithm does during the backward pass.
        """

    @abstractmethod
    def step(self, n_samples: int) -> None:
        """Turn this worker's mean gradient over `n_samples` into new parameters, and forget the gradient.

        It calls `replica.collect()`, without which it would train on no gradient: that is a RunFailed. Raises PeerLost,
        WaitTimeout.
        """

    def serve(self) -> None:
        """On a server rank: answer the workers until the epoch has ended. Raises PeerLost, WaitTimeout."""
        raise RuntimeError(f"{type(self).__name__} has no server rank")

    def finish(self) -> None:  # noqa: B027 - there may be nothing to do
        """End an epoch, or the training: send what is unsent, average the buffers. All ranks call it.

        Afterwards `model()` is good, and training may continue.
        """

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Yield which of the steps `start` to `stop` - 1, counted over all epochs, this worker is to take."""
        yield from range(start, stop)

    def model(self) -> torch.Tensor:
        """Return the parameters [n] that the algorithm calls its model, the same on every rank. All ranks call it.

        Where workers may die, those that are dead do not, and a checkpoint shows the x of its `state_dict` instead.
        """
        return self.replica.x

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank needs to continue later."""
        replica = self.replica
        vectors = {"x": replica.x.clone(), "b": replica.b.clone(), "counts": replica.counts, "others": replica.others}
        return {**vectors, **self.descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same model and rank."""
        self.replica.x.copy_(state["x"])
        self.replica.b.copy_(state["b"])
        self.replica.others = state["others"]
        self.descent.load_state_dict(state)


MAY_CHANGE = "may change"
MAY_CHANGE_ON_RESUME = {MAY_CHANGE: "on resume"}
"""Metadata of an option that a resumed run may have another value for; without it, the option decides the result."""
