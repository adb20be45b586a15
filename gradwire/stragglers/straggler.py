"""How slowly a rank computes its passes."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from gradwire.core.records.observer import Observer
from gradwire.core.training.rank import Rank
from gradwire.core.training.watchers import Watcher
from gradwire.core.transports.base import Transport


class Slowdown:
    """How many times its time each pass of a rank takes: factor * exp(jitter * |z|), z standard normal from `seed`."""

    def __init__(self, factor: float, jitter: float, seed: int) -> None:
        self.factor = factor
        self.jitter = jitter
        self._random = torch.Generator().manual_seed(seed)

    def draw(self) -> float:
        """Return the factor of the next pass."""
        if self.jitter == 0:
            return self.factor
        z = torch.randn((), generator=self._random).item()
        return self.factor * math.exp(self.jitter * abs(z))


class Straggler(Observer):
    """Stretches the passes of one rank, as an option says: see `Slowdown`.

    The time is made longer by sleeping, so the cores are free for the other ranks.
    """

    def __init__(self, factor: float, jitter: float, seed: int, transport: Transport) -> None:
        self._slowdown = Slowdown(factor, jitter, seed)
        self._times = 1.0  # of this pass
        self._since = 0.0  # the computation done when it began, or went on
        self.transport = transport

    @property
    def is_slow(self) -> bool:
        """Whether there is anything to stretch."""
        return self._slowdown.factor != 1 or self._slowdown.jitter != 0

    def in_phase(self, name: str) -> AbstractContextManager[None]:
        """Return the block in which a pass is stretched; of another phase, one in which nothing is."""
        return self.slowed() if name in ("forward", "backward") else nullcontext()

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """Make the block, one pass, last as long as on a slow rank."""
        if not self.is_slow:
            yield
            return
        self._times, self._since = self._slowdown.draw(), self._computed()
        yield
        self._catch_up()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Within a pass: sleep for the time missing so far, and do not stretch the block."""
        self._catch_up()
        yield
        self._since = self._computed()

    def _catch_up(self) -> None:
        self.transport.sleep((self._times - 1) * (self._computed() - self._since))

    def _computed(self) -> float:
        # On a CPU the thread's own time: DDP waits for others inside its backward pass, and cores may be shared.
        if self.transport.device.type == "cpu":
            return self.transport.cpu_seconds()
        torch.cuda.synchronize(self.transport.device)
        return self.transport.now()


class StragglerWatcher(Watcher):
    """Makes ranks slow: `slowdowns` are the factors of some."""

    def __init__(self, slowdowns: Mapping[int, float], jitter: float, seed: int) -> None:
        self._slowdowns, self._jitter, self._seed = slowdowns, jitter, seed

    def begin_run(self, rank: Rank) -> None:
        """Stretch each pass from here on."""
        transport = rank.transport
        factor = self._slowdowns.get(transport.rank, 1.0)
        self._straggler = Straggler(factor, self._jitter, self._seed + transport.rank, transport)
        rank.recorder.observers.append(self._straggler)

    def after_start(self, rank: Rank) -> None:
        """Leave out work that is done within a pass but does not belong to it."""
        if not rank.recorder.time_passes:
            rank.replica.interruption = self._straggler.interrupted
