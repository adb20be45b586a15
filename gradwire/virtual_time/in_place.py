"""A message in virtual time whose receiver reads it in the sender's memory."""

import math

from typing_extensions import override

from gradwire.core.transports.messages import Message, Work
from gradwire.virtual_time.ranks import SimulatedRank


class InPlace(Work):
    """A message that is read in its sender's memory, at least until its last byte has left."""

    __slots__ = ("_dst", "_left", "_message", "_read_from", "_read_until", "_sender")

    def __init__(self, sender: SimulatedRank, message: Message, dst: int) -> None:
        self._sender, self._dst = sender, dst
        self._left = math.inf  # not known before
        self._message: Message | None = message  # until it is released: there may be very many
        self._read_from = self._read_until = math.inf  # in virtual time; known when its receiver has released it

    def leave(self, at: float) -> None:
        """Note when its last byte has left its sender's card."""
        self._left = at
        if (wanted := self._sender._wanted) and wanted[2] is not None:
            self._sender.wake(at)

    def release(self) -> None:
        """Note that the receiver reads it no more."""
        sender = self._sender
        if self._message is not None:
            self._read_from = self._message._t0
            self._message = None
        self._read_until = sender.ranks.transports[self._dst].clock
        if (wanted := sender._wanted) and wanted[2] is not None:
            sender.wake(self._read_until)

    @property
    @override
    def done(self) -> bool:
        if self._left == math.inf:
            self._sender.catch_up()
        return self._sender.clock >= self._left and self._is_free()

    @override
    def wait(self) -> None:
        sender = self._sender
        t0 = sender.clock
        if self._left <= t0 and self._read_until <= t0:
            return
        while self._left == math.inf and self._message is not None:
            sender.wait_for(self._dst, (), self._message.tag)
        sender.clock = max(sender.clock, self._left)
        while not self._is_free():
            if self._message is None:
                sender.clock = self._read_until
            else:
                sender.wait_for(self._dst, (), self._message.tag)
        if sender.clock > t0:
            sender.recorder.add("wait", t0, sender.clock, peer=self._dst, tag="release")

    def _is_free(self) -> bool:
        """Whether the receiver is not reading it now; a message not received yet gets a copy."""
        sender, message = self._sender, self._message
        if self._read_until <= sender.clock:
            return True
        sender.catch_up()  # a receiver that is due by now has received it
        if message is None or self._read_until < math.inf:
            return self._read_until <= sender.clock or self._read_from > sender.clock
        if message._receiver is None and message.tensor is not None:
            with sender.recorder.holding(""):  # in processes it would have been read by now
                message.tensor = message.tensor.clone()
            message._give_back = lambda: None
            self._message, self._read_until = None, sender.clock
            return True
        return sender.is_gone(self._dst)
