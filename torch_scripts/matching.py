"""Which calls of ranks belong together: the same collective of a group, a message and its receive."""

from dataclasses import dataclass, field

from records.errors import RunFailed
from torch_scripts.process_group import Collective, Pending, Receive, Send


@dataclass
class Meeting:
    """One collective of a group: who has entered it, by rank of the world."""

    ranks: tuple[int, ...]
    entered: dict[int, Pending] = field(default_factory=dict)

    def add(self, pending: Pending) -> None:
        """Note that a rank has entered. Raises RunFailed if it has called something else than those before it."""
        for other in self.entered.values():
            if words_of(other) != words_of(pending):
                raise RunFailed(
                    f"mismatch: rank {pending.rank} is in {words_of(pending)} at {pending.at}, "
                    f"rank {other.rank} in {words_of(other)} at {other.at}"
                )
            break
        self.entered[pending.rank] = pending

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

    def meeting(self, pending: Pending) -> Meeting:
        """Return the collective that a rank enters now. Raises RunFailed."""
        call = pending.call
        assert isinstance(call, Collective)
        meeting = self.meetings.setdefault((call.group, call.number), Meeting(call.ranks))
        meeting.add(pending)
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

    def pair(self, send: Pending, receive: Pending) -> None:
        """Note that a message is for a receive. Raises RunFailed if it does not fit."""
        self.sends.remove(send)
        self.receives.remove(receive)
        sent, wanted = send.call, receive.call
        assert isinstance(sent, Send)
        assert isinstance(wanted, Receive)
        if (sent.tensor.numel(), sent.tensor.dtype) != (wanted.tensor.numel(), wanted.tensor.dtype):
            raise RunFailed(
                f"mismatch: rank {send.rank} is in {words_of(send)} at {send.at}, rank {receive.rank} in "
                f"{words_of(receive)} at {receive.at}"
            )
        receive.source = send.rank

    def reason(self, pending: Pending) -> str:
        """Return what a call waits for, in words, with its line of the script."""
        call, text = pending.call, f"rank {pending.rank} waits in {words_of(pending)} at {pending.here.thread.at}"
        if isinstance(call, Collective):
            meeting = self.meetings.get((call.group, call.number))
            missing = meeting.missing if meeting else []
            return f"{text} for rank {', '.join(map(str, missing))}" if missing else text
        return text

    def unread(self) -> list[str]:
        """Return the messages that nobody has received, and the receives that found none, in words."""
        return [f"rank {one.rank}: {words_of(one)} at {one.at}" for one in [*self.sends, *self.receives]]


def words_of(pending: Pending) -> str:
    """Return what a rank has called, in words that are the same on all ranks of a collective."""
    call = pending.call
    if isinstance(call, Collective):
        return call.words
    size = f"{tuple(call.tensor.shape)} {str(call.tensor.dtype).removeprefix('torch.')}"
    tag = f", tag {call.tag}" if call.tag else ""
    if isinstance(call, Send):
        return f"send of {size} to rank {call.dst}{tag}"
    return f"recv of {size} from {'anybody' if call.src is None else f'rank {call.src}'}{tag}"


def _fits(send: Pending, receive: Pending) -> bool:
    sent, wanted = send.call, receive.call
    assert isinstance(sent, Send)
    assert isinstance(wanted, Receive)
    return (
        (sent.group, sent.dst, sent.tag) == (wanted.group, receive.rank, wanted.tag)
        and wanted.src in (None, send.rank)
    )  # fmt: skip
