"""Which calls of ranks belong together: the same collective of a group, a message and its receive."""

from dataclasses import dataclass, field

from records.errors import RunFailed
from torch_scripts.process_group import Collective, Message, Pending


@dataclass
class Meeting:
    """One collective of a group: who has entered it, by rank of the world."""

    ranks: tuple[int, ...]
    entered: dict[int, Pending] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """The ranks that have not entered."""
        return [rank for rank in self.ranks if rank not in self.entered]


class Calls:
    """The calls of all ranks that have not been matched."""

    def __init__(self) -> None:
        self.meetings: dict[tuple[str, int], Meeting] = {}
        self.sends: list[Pending] = []
        self.receives: list[Pending] = []

    def meet(self, pending: Pending, call: Collective) -> Meeting:
        """Return the collective that a rank enters now. Raises RunFailed if others have entered another one."""
        meeting = self.meetings.setdefault((call.group, call.number), Meeting(call.ranks))
        for first in list(meeting.entered.values())[:1]:
            if first.call.words != call.words:
                raise _mismatch(first, pending)
        meeting.entered[pending.rank] = pending
        if not meeting.missing:
            del self.meetings[call.group, call.number]
        return meeting

    def sends_for(self, receive: Pending) -> list[Pending]:
        """Return the messages that a receive may take: of each rank the first."""
        firsts: dict[int, Pending] = {}
        for send in self.sends:
            if _fits(send, receive):
                firsts.setdefault(send.rank, send)
        return list(firsts.values())

    def receive_for(self, send: Pending) -> Pending | None:
        """Return the first receive that may take a message; None: there is none."""
        return next((receive for receive in self.receives if _fits(send, receive)), None)

    def pair(self, send: Pending, receive: Pending) -> tuple[Message, Message]:
        """Return a message and the receive that takes it now. Raises RunFailed if its tensor is of another kind."""
        self.sends.remove(send)
        self.receives.remove(receive)
        sent, wanted = send.call, receive.call
        assert isinstance(sent, Message)
        assert isinstance(wanted, Message)
        if (sent.tensor.numel(), sent.tensor.dtype) != (wanted.tensor.numel(), wanted.tensor.dtype):
            raise _mismatch(send, receive)
        receive.source = send.rank
        return sent, wanted

    def reason(self, pending: Pending) -> str:
        """Return what a rank waits for, in words, with its line of the script."""
        call, text = pending.call, f"rank {pending.rank} waits in {pending.call.words} at {pending.thread.at}"
        meeting = self.meetings.get((call.group, call.number)) if isinstance(call, Collective) else None
        return text + (f" for rank {', '.join(map(str, meeting.missing))}" if meeting else "")

    def unread(self) -> list[str]:
        """Return the messages that nobody has received, and the receives that found none, in words."""
        return [f"rank {one.rank}: {one.call.words} at {one.at}" for one in [*self.sends, *self.receives]]


def _mismatch(one: Pending, other: Pending) -> RunFailed:
    texts = (f"rank {call.rank} is in {call.call.words} at {call.at}" for call in (other, one))
    return RunFailed(f"mismatch: {', '.join(texts)}")


def _fits(send: Pending, receive: Pending) -> bool:
    sent, wanted = send.call, receive.call
    assert isinstance(sent, Message)
    assert isinstance(wanted, Message)
    same = (sent.group, sent.peer, sent.tag) == (wanted.group, receive.rank, wanted.tag)
    return same and wanted.peer in (None, send.rank)
