"""Ranks in virtual time: the messages of `Transport` over a network of numbers (`network.py`, `world.py`).

Slices of allocated vectors are not copied: the receiver reads them in place, as in shared memory. On a real network
a slice would have left with its last byte; so when the sender wants its memory back by then, messages not received yet
are copied, and it waits only for those that are being read.

By default a wait has no limit: when nothing more can happen, it raises `Deadlock`, which names each waiting rank, the
message and its sender.
"""

import pickle
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, overload

import torch
from typing_extensions import override

from gradwire.core.transports.base import NO_LIMIT
from gradwire.core.transports.inbox import ANY, Tags, named
from gradwire.core.transports.messages import Delivered, Message, PeerLost, Work, as_vector
from gradwire.networks.card import Card
from gradwire.virtual_time.in_place import InPlace
from gradwire.virtual_time.ranks import SimulatedRank
from gradwire.virtual_time.sharing import Flow
from gradwire.virtual_time.vectors import Hollow, zeros

_LOOK_S = 1e-6  # the time of a poll that finds nothing, so that a polling rank lets others continue


class Simulated(SimulatedRank):
    """`Transport` in virtual time; made in the coroutine that is the rank."""

    # Memory

    @override
    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        # Hollow vectors share one storage, so where storages are counted there are none.
        make = torch.zeros if self.recorder.observers else zeros
        vector: torch.Tensor = make(numel, dtype=dtype, device=self.device)
        self.lend(vector)
        self.bytes_allocated += vector.nbytes
        return vector

    @override
    def free(self, vector: torch.Tensor) -> None:
        super().free(vector)
        self.bytes_allocated -= vector.nbytes

    def lend(self, vector: torch.Tensor) -> None:
        """Let peers read slices of a vector in place, as if it were allocated here."""
        self._allocated[vector.untyped_storage().data_ptr()] = vector  # on the meta device all have the same, 0

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        """Raise RuntimeError: the ranks are machines of their own."""
        raise RuntimeError("ranks in virtual time share no memory")

    # Sending

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        self._check_alive()
        if self._departures < len(self.ranks.gone):
            self._notice(dst)
        if dst in self.inbox.gone:
            raise PeerLost(dst, self.inbox.gone[dst])
        if type(value) is Hollow:  # as below, without torch's Python
            in_place, nbytes = True, value.nbytes
            message = Message(self.rank, tag, value, None, nbytes, n)
        elif isinstance(value, torch.Tensor):
            in_place = value.is_contiguous() and value.untyped_storage().data_ptr() in self._allocated
            with self.recorder.holding(""):  # it counts when it is received
                vector = value if in_place and value.dim() == 1 else as_vector(value)
                if not in_place:
                    vector = vector.clone()
            nbytes = value.nbytes
            message = Message(self.rank, tag, vector, None, nbytes, n)
        else:
            in_place = False
            payload = b"" if value is None else pickle.dumps(value)
            nbytes = len(payload)
            message = Message(self.rank, tag, None, payload, nbytes, n)
        message.order = (sent, 0)
        if self.ranks.handling:
            self.work(self.ranks.handling.to_send(nbytes))
            self._check_alive()
        self.on_the_way += 1
        arrive = partial(self._deliver, message, dst, self.ranks.lives[dst])
        work: Work = Delivered()
        left = None
        if in_place:
            work = on_its_way = InPlace(self, message, dst)
            message._give_back, left = on_its_way.release, on_its_way.leave
        cards: Sequence[Card] = self.network.path(self.rank, dst)
        if self.ranks.cores:
            cards = (*cards, *self.ranks.cores.copies)
        back = self.network.path(dst, self.rank) if self.network.acknowledged else ()
        self.world.sharing.send(Flow(self.network.way(self.rank, dst), cards, nbytes, left, arrive, back), self.clock)
        return work, nbytes

    def _deliver(self, message: Message, dst: int, life: int) -> None:
        if self.ranks.lives[dst] == life:  # else it was sent to one that has died since
            self.ranks.transports[dst].receive_arrived(message)
        self.on_the_way -= 1
        if self._why_gone:
            self.arrived()

    # Receiving

    @overload
    def recv(self, src: int, tag: Tags, timeout: None = None) -> Message: ...

    @overload
    def recv(self, src: int, tag: Tags, timeout: float) -> Message | None: ...

    @override
    def recv(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        message = super().recv(src, tag, timeout)
        if message is not None and self.ranks.handling:
            self.work(self.ranks.handling.to_receive(message.nbytes))
        return message

    def _look(self, src: int) -> bool:
        if src == ANY:  # messages of a single rank keep their order: there is nothing to choose
            self.catch_up()
        return src == ANY

    def _progress(self, src: int, seconds: float) -> None:
        self.clock += seconds
        self.catch_up()

    def _receive(self, src: int, tag: Tags, timeout: float | None = None) -> Message | None:
        limit = self.timeout if timeout is None else timeout
        limited, deadline = limit < NO_LIMIT, self.clock + limit
        if limited and limit:
            self.world.at(deadline, lambda: self.wake(deadline))
        if limited or src == ANY:
            self.catch_up()
        while (message := self.inbox.pop(src, tag)) is None:
            if self._departures < len(self.ranks.gone):
                self._notice(src)
            self.inbox.check(src, tag)
            if timeout == 0:
                self.clock += _LOOK_S
                return None
            if limited and self.clock >= deadline:
                raise self.inbox.overdue(named(tag), src, limit)
            self.wait_for(src, tag)
        return message
