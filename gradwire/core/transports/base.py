"""What every transport promises: one rank's view of the world, and messages between ranks.

A transport moves vectors and small Python objects; it does all the waiting of a strategy, bounds every wait, notices
dead peers, and records every message. Its kinds decide how bytes get across, such as `process_group.py`.
"""

import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, overload

import torch

from gradwire.core.records.errors import EQUAL_STEPS, RunFailed
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports import timing
from gradwire.core.transports.inbox import ANY, Inbox, Tags
from gradwire.core.transports.messages import Alignment, Message, PeerLost, Work
from gradwire.core.transports.throttle import Rates, Throttle

CLOSED = "it has closed its transport"  # why a peer is gone that has ended its work
NO_LIMIT = 1e6  # seconds: for a wait without a limit
_BARRIER = "(barrier)"


class Transport(ABC):
    """The connection of one rank to the others.

    `rank` is its number of `world_size`; its vectors live on `device`; `recorder` records every message; `timeout`
    (seconds) bounds every wait without a limit of its own; with a `link`, messages are held back. `messages_sent[dst]`
    and `bytes_sent[dst]` count what was sent, in bytes of payload. `rejoined`: this rank was started again in the
    middle of a run, and sees only the ranks that may admit it. `owes`: the call that it must make before its work ends,
    which the launchers check. `steps`: how many it has begun, where all ranks take the same number; waiting for a rank
    that has ended with fewer raises RunFailed.

    `recv` takes the message that was sent first, by `now`, among those that have arrived completely.
    `inbox.arrivals` lists the ranks whose messages `recv` took from ANY, polls left out; two runs of an asynchronous
    algorithm differ in nothing else. With `inbox.replay`, such a list, `recv` takes messages in its order again. No
    limit counts the time while the process is stopped.
    """

    rejoined = False
    same_machine = True  # whether all ranks run on one, and so see the same files
    alignment: Alignment | None = None  # where they may run on several

    def __init__(
        self, rank: int, world_size: int, device: torch.device, timeout: float, recorder: Recorder | None,
        link: Throttle | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.world_size, self.device = rank, world_size, device
        self.timeout, self.link = timeout, link
        self.recorder = recorder or Recorder(rank, enabled=False)
        self.recorder.clock = self.now
        self.messages_sent = Counter[int]()
        self.bytes_sent = Counter[int]()
        self._running = timing.RunningClock(self.now)  # for limits
        self.owes = ""
        self.steps = 0
        self._closed = False
        self._allocated: dict[int, Any] = {}  # vectors by the address of their memory
        self._on_gpu = device.type == "cuda"
        self.inbox = Inbox(self)

    @cached_property
    def peers(self) -> list[int]:
        """All ranks but this one."""
        return [peer for peer in range(self.world_size) if peer != self.rank]

    @property
    def rates(self) -> Rates | None:
        """The known rates of the network; None: they have to be measured."""
        return self.link.rates if self.link else None

    def now(self) -> float:
        """Return the time in seconds, the same on all ranks."""
        return timing.now()

    def sleep(self, seconds: float) -> None:
        """Do nothing for `seconds`."""
        timing.sleep(seconds)

    def cpu_seconds(self) -> float:
        """Return the seconds that this rank has computed."""
        return timing.cpu_seconds()

    def while_busy(self, tell: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `tell` at intervals during the block, in which this rank computes and calls nothing of the transport.

        Four times in a `timeout`, so that a rank that waits for this one knows that it is alive: a stopped or dead
        process calls nothing. The intervals are those of the wall clock.
        """
        return timing.at_intervals(self.timeout / 4, tell)

    # Implemented by each kind of transport

    @abstractmethod
    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a zeroed vector [numel] on `device` whose slices peers can read in place.

        Only this rank calls it: peers learn of the vector by the first message that carries a slice of it.
        """

    def free(self, vector: torch.Tensor) -> None:
        """Forget a vector that was allocated: no peer reads it any more."""
        if not vector.is_meta:  # there all have one address
            self._allocated.pop(vector.untyped_storage().data_ptr(), None)

    @abstractmethod
    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """Return one vector [numel] in one memory, zeroed, writable by all of `ranks`, which all call this.

        The lowest of them creates it without waiting; the others wait for it. Raises RuntimeError on a transport
        without shared memory.
        """

    @abstractmethod
    def close(self) -> None:
        """Say goodbye and free everything. Messages already sent are still delivered."""

    @abstractmethod
    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        """Send a tensor or an object (None: no payload), at the time `sent`; return its Work and its bytes."""

    @abstractmethod
    def _progress(self, src: int, seconds: float) -> None:
        """Move messages that have arrived from `src` (or ANY) to the inbox; wait at most `seconds` for one.

        `seconds` is at most `timing.SLICE_S`: limits count the time in which this process was running.
        """

    def _look(self, src: int) -> bool:
        """Move messages that have arrived from `src` (or ANY) to the inbox, without waiting; deaths may go unnoticed.

        Return whether there may have been something.
        """
        self._progress(src, 0)
        return True

    def admit(self, peer: int) -> None:
        """Let a rank that was started again take part, after a PeerReturned. What its earlier life sent is forgotten.

        It is handed the shared vectors of this rank, and calls `shared_vector` as everybody did at the start.
        """
        raise RuntimeError("no rank returns on this transport")

    def is_gone(self, peer: int) -> bool:
        """Whether a peer has died, or closed its transport."""
        return peer in self.inbox.gone

    def may_return(self) -> bool:
        """Whether a dead rank may yet be started again."""
        return False

    # Called by strategies

    def isend(self, value: Any, dst: int, tag: str, n: float = 0) -> Work:
        """Send `value`, and the number `n` (an int64, or a float) beside it, to rank `dst` and return at once.

        A tensor is sent as a vector, any other value as an object; None has no payload. A contiguous slice of an
        allocated vector is not to be changed until the Work is done; any other tensor is copied first. Messages of
        one (source, tag) arrive in the order they were sent. `n` counts as no bytes. Raises PeerLost.
        """
        t0 = self.now()
        self._check_open()
        if dst in self.inbox.gone:
            raise PeerLost(dst, self.inbox.gone[dst])
        if dst == self.rank or not 0 <= dst < self.world_size:
            raise ValueError(f"rank {self.rank} cannot send to rank {dst} in a world of {self.world_size}")
        if not (isinstance(n, float) or -(2**63) <= n < 2**63):
            raise ValueError(f"{n} is not an int64")
        work, nbytes = self._send(value, dst, tag, n, t0)
        self.messages_sent[dst] += 1
        self.bytes_sent[dst] += nbytes
        if self.recorder.enabled:
            self.recorder.add("communicate", t0, self.now(), "send", dst, tag, nbytes)
        return work

    @overload
    def recv(self, src: int, tag: Tags, timeout: None = None) -> Message: ...

    @overload
    def recv(self, src: int, tag: Tags, timeout: float) -> Message | None: ...

    def recv(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        """Return the next message with `tag` (or one of several) of rank `src` (or of ANY): the first that was sent.

        `timeout` seconds instead of the transport's own limit; 0 polls: None if there is nothing yet. Raises
        PeerLost (for ANY: once a dead peer, and when no peer is left), PeerReturned (for ANY), WaitTimeout.
        """
        t0 = self.now()
        self._check_open()
        if src != ANY and (src == self.rank or not 0 <= src < self.world_size):
            raise ValueError(f"rank {self.rank} cannot receive from rank {src} in a world of {self.world_size}")
        from_any = src == ANY and timeout != 0
        if from_any:
            src = self.inbox.next_source()
        if src == ANY:
            self._look(ANY)  # messages that have just come may have been sent before those in the inbox
        message = self.inbox.pop(src, tag)
        if message is None and src != ANY and timeout != 0 and self._look(src):
            message = self.inbox.pop(src, tag)
        has_waited = message is None
        if message is None:
            message = self._receive(src, tag, timeout)
            if message is None:
                return None
        here = self.now()  # by now it has been sent, on whatever core
        if has_waited and self.recorder.enabled:
            self.recorder.add("wait", t0, here, peer=message.src, tag=message.tag)
        if from_any:
            self.inbox.arrivals.append(message.src)
        message._receiver, message._t0 = self, here
        self.recorder.receive(message, self.same_machine)
        if message.tensor is not None:
            if self._on_gpu:  # it may lie on another one
                message.tensor = message.tensor.to(self.device)
        else:
            message.object = pickle.loads(message.object) if message.object else None
            message.release()
        return message

    def barrier(self) -> None:
        """Wait until all ranks are here. Not counted as messages. Raises PeerLost, WaitTimeout."""
        self._check_open()
        if self.rank == 0:
            for peer in self.peers:
                self._receive(peer, _BARRIER)
            for peer in self.peers:
                self._send(None, peer, _BARRIER, sent=self.now())
        else:
            self.inbox.raise_if_gone(0, _BARRIER)
            self._send(None, 0, _BARRIER, sent=self.now())
            self._receive(0, _BARRIER)

    def read(
        self, vector: torch.Tensor, out: torch.Tensor, owner: int, begun: torch.Tensor, ended: torch.Tensor
    ) -> int:
        """Copy a shared vector that rank `owner` may be writing meanwhile into `out`; return the version read.

        `begun` and `ended`, shared vectors of one int64 element, count the updates of `vector` that have begun and
        that have ended. The version read is what had ended before the copy; it is recorded together with what had
        begun after it. If the two are equal, the copy holds one version; otherwise it may mix versions.
        """
        t0 = self.now()
        version_read = int(ended)
        out.copy_(vector)
        version_applied = int(begun)
        self.recorder.add(
            "communicate", t0, self.now(), "read", owner, "x", vector.nbytes, version_read, version_applied
        )
        return version_read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"rank {self.rank} has closed its transport")

    def _note(self, message: Message, t0: float) -> None:
        """Record a received message: its span ends when its receipt is logged or it is released, being read so far."""
        self._synchronize()
        if self.recorder.enabled:
            self.recorder.add("communicate", t0, self.now(), "recv", message.src, message.tag, message.nbytes)

    def _receive(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        """`recv` without the records."""
        return self.inbox.receive(src, tag, timeout)

    def compare_steps(self, ended: Message) -> None:
        """Check that the sender of STEPS_TAKEN took as many steps as this rank has begun. Raises RunFailed."""
        if ended.n < self.steps:
            raise RunFailed(
                f"rank {ended.src} took {ended.n:g} steps before finish(), and rank {self.rank} has begun {self.steps}"
                f": in a loop of your own {EQUAL_STEPS}"
            )

    def _lose(self, peer: int, why: str, died: bool = True) -> None:
        """Note that `peer` is gone, by its death, or because it has closed, once all has arrived that it sent."""
        self._after_its_messages(peer, partial(self.inbox.lose, peer, why, died))

    def _after_its_messages(self, peer: int, happen: Callable[[], None]) -> None:
        """Call `happen` when no message of `peer` is held back any longer."""
        if self.link:
            self.link.follow(peer, happen)
        else:
            happen()

    def _synchronize(self) -> None:
        """Finish the work queued on this rank's GPU, so that another process may look at its memory."""
        if self._on_gpu:
            torch.cuda.current_stream(self.device).synchronize()
