"""The base class of strategies: a strategy does the work between `backward()` and the next `forward()`."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from gradwire.core.records.errors import RunFailed
from gradwire.core.strategy.broadcast import broadcast
from gradwire.core.strategy.codes import CodecFactory, Coder
from gradwire.core.strategy.cost_model import evaluate_cost, sources
from gradwire.core.strategy.factories import OptimizerFactory
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.settings import DEFAULT, RunSettings
from gradwire.core.strategy.state import Kept, StateEntry
from gradwire.core.strategy.traits import Cost, Footprint, Traits, Weight
from gradwire.core.strategy.updater import HasUpdater, Updater
from gradwire.core.transports.base import Transport
from gradwire.core.transports.inbox import STEPS_TAKEN

_STRATEGIES = Path(__file__).resolve().parents[3] / "strategies"


@dataclass(kw_only=True)
class Strategy(HasUpdater, ABC):
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
    traits: ClassVar[Traits] = Traits()
    updater_type: ClassVar[type[Updater]] = Updater

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
            is_ours = _STRATEGIES in Path(file).resolve().parents  # the user may have a package of that name too
            cls.name = cls.__module__.rpartition(".")[2] if is_ours else f"{cls.__module__}:{cls.__qualname__}"

    # Known before it starts

    @abstractmethod
    def cost(self, kind: str | None = None) -> Cost:
        """Return the traffic of a step; `kind`: that of the codec of gradients, None: without a codec."""

    def memory(self, role: str) -> Footprint:
        """Return the memory in a step of the rank of this role that holds most."""
        if role == "server":
            return Footprint(gradients="P")
        return Footprint(optimizer_state="0" if self.traits.server_updates else "S")

    def roles(self, world_size: int) -> list[str]:
        """Return each rank's role: "worker" or "server"."""
        return ["worker"] * world_size

    def count_workers(self, n_gpus: int) -> int:
        """Return into how many parts, one for each worker, a global batch is cut."""
        return self.roles(n_gpus).count("worker")

    def check(self, run: RunSize) -> None:
        """Check what no field of the options can say: see `between`. Raises UsageError."""

    @property
    def period(self) -> int:
        """The steps of a worker in which all that it sends has its turn: of one code, if it sends codes."""
        return 1

    @property
    def fewest_workers(self) -> int:
        """The smallest number of workers with which one exchanges something with another."""
        return 2

    def weight(self, workers: int) -> Weight | str:
        """Return the weight that each gradient has in the model at last; in words, why that is not known."""
        alike = self.traits.agree and not self.traits.asynchronous
        return Weight(workers) if alike else "its class does not say the weight of a gradient"

    # The run

    def notice(self, n_gpus: int) -> str:
        """Return one line for the user of what runs in parallel, if that is not the ranks of the run; else ""."""
        return ""

    def make_replica(self, model: nn.Module, transport: Transport, n_gpus: int) -> Replica:
        """Return the replica that this rank trains."""
        return Replica(model, transport)

    def start(
        self,
        replica: Replica,
        transport: Transport,
        optimizer: OptimizerFactory,
        settings: RunSettings = DEFAULT,
        state: dict[str, Any] | None = None,
        codec: CodecFactory | None = None,
    ) -> None:
        """Give the strategy its run. Called once, by all ranks.

        `optimizer`: see `Updater`. `state`: what `state_dict` returned, to continue from there. `codec`: what gradients
        are sent by, of a kind that this strategy carries; None: as they are. Raises PeerLost, WaitTimeout.
        """
        self.replica = replica
        self.transport = transport
        self.settings, self.seed = settings, settings.seed
        self._kept: dict[str, StateEntry] = {}
        with transport.recorder.holding("codec state"):
            self.coding = self._code_by(codec) if codec else None
        transport.recorder.meters.clear()
        transport.recorder.follow(sources(type(self)))
        clip_norm, schedule = settings.clip_norm, settings.schedule
        self.updater = self.updater_type(
            [replica.x], optimizer, clip_norm, schedule, transport.recorder, replica.layout
        )
        self.updater.after_update = settings.after_update
        self.updater.lacking = replica.lacking
        self.step = self._collecting(self.step)  # type: ignore[method-assign]
        self.finish = self._comparing(self.finish)  # type: ignore[method-assign]
        self.setup()
        if state is not None:
            self.load_state_dict(state)
        self.join(resumed=state is not None)

    def _code_by(self, codec: CodecFactory) -> Coder:
        sends = self.roles(self.transport.world_size)[self.transport.rank] == "worker"
        coding = codec.begin(self.replica, self.transport, self.dense_bytes(), sends)
        # Where workers may die, a server begins anew with each: what codecs keep of them is lost.
        self.keep("codec", coding, saved=sends or not self.traits.workers_may_die)
        return coding

    def dense_bytes(self) -> float:
        """Return the bytes that a worker would send in place of a code."""
        N, x = self.transport.world_size, self.replica.x
        return self.period * evaluate_cost(self, self.cost().worker, N, x.nbytes, itemsize=x.itemsize)[1]

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
        """Return `finish`, which first compares the steps of all ranks, unless a plan has fixed them."""

        def checked() -> None:
            all_in_step = not self.traits.asynchronous and set(self.roles(self.transport.world_size)) == {"worker"}
            if all_in_step and self.transport.world_size > 1 and math.isinf(self.updater.until):
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

    def setup(self) -> None:
        """Allocate the algorithm's own state. Called by `start`, by all ranks."""

    def join(self, resumed: bool) -> None:
        """Give every rank all of the module's state of rank 0, unless each has its own of a resumed run."""
        if not resumed:
            broadcast(self.replica.x, self.transport, "initial parameters")
            broadcast(self.replica.b, self.transport, "initial buffers")
            if (others := self.replica.others).numel():
                broadcast(others, self.transport, "initial others")
                self.replica.others = others

    def begin_step(self, n_samples: int) -> None:
        """Prepare for the two passes that complete the gradient of the next `step`, the mean over `n_samples`.

        Optional in a loop: without it an algorithm does nothing during the backward pass. Called again between the two
        passes, it corrects `n_samples`.
        """

    @abstractmethod
    def step(self, n_samples: int) -> None:
        """Turn this worker's mean gradient over `n_samples` into new parameters, and forget the gradient.

        Of a loss that is a mean of something else, such as tokens, `n_samples` counts that: ranks are weighted by it.

        It calls `replica.collect()`, without which it would train on no gradient: that is a RunFailed. Raises PeerLost,
        WaitTimeout.
        """

    def serve(self) -> None:
        """On a server rank: answer the workers until the epoch has ended. Raises PeerLost, WaitTimeout."""
        raise RuntimeError(f"{type(self).__name__} has no server rank")

    def finish(self) -> None:
        """End an epoch, or the training: send pending vectors, average the buffers. All ranks call it.

        Afterwards `model()` may be called, and training may continue.
        """

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Yield which of the steps `start` to `stop` - 1, counted over all epochs, this worker is to take."""
        yield from range(start, stop)

    def model(self) -> torch.Tensor:
        """Return the parameters [n] that the algorithm calls its model, the same on every rank. All ranks call it.

        Where workers may die, those that are dead do not, and a checkpoint shows the x of its `state_dict` instead.
        """
        return self.replica.x

    # What belongs to this rank's state

    def keep(self, name: str, thing: Kept, saved: bool = True, counted: bool = True) -> None:
        """Make a thing part of this rank's state: a tensor, or an object with `state_dict` and `load_state_dict`.

        `saved`: checkpoints hold it. `counted`: it is memory of this rank's own, beside the vectors of its transport.
        """
        self._kept[name] = StateEntry(thing, saved, counted)

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank needs to continue later."""
        replica = self.replica
        vectors = {"x": replica.x.clone(), "b": replica.b.clone(), "counts": replica.counts, "others": replica.others}
        return {**vectors, **self.updater.state_dict(), **{name: entry.state() for name, entry in self._saved()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same model and rank."""
        self.replica.x.copy_(state["x"])
        self.replica.b.copy_(state["b"])
        self.replica.others = state["others"]
        self.updater.load_state_dict(state)
        for name, entry in self._saved():
            entry.load(state[name])

    def _saved(self) -> list[tuple[str, StateEntry]]:
        return [(name, entry) for name, entry in self._kept.items() if entry.saved]

    @property
    def state_bytes(self) -> int:
        """The bytes of the optimizer's state, such as momentum, on this rank, and of the counted state entries."""
        return self.updater.state_bytes + sum(entry.nbytes for entry in self._kept.values() if entry.counted)
