"""A receive that may find nothing, where that decides the result of a run: it notes its results for a replay."""

from contextlib import suppress

from gradwire.core.transports.base import Transport
from gradwire.core.transports.inbox import ANY, NOBODY, Tags
from gradwire.core.transports.messages import Message, WaitTimeout


def receive_replayable(transport: Transport, src: int, tag: Tags, seconds: float) -> Message | None:
    """Return the next message of rank `src` (or of ANY), as `recv` does; None if none comes within `seconds`.

    With 0 seconds it finds only messages that have arrived. `inbox.arrivals` also notes the calls that return None. A
    replay waits for the same messages, however late they come, and the same calls return None at once. Raises PeerLost,
    PeerReturned; in a replay WaitTimeout.
    """
    inbox = transport.inbox
    message = None
    if inbox.replay is not None:
        if (src := inbox.next_source()) != NOBODY:
            message = transport.recv(src, tag)
    else:
        with suppress(WaitTimeout):
            message = transport.recv(src, tag, seconds)
        if message is not None and src == ANY and seconds:
            return message  # `recv` has noted it
    inbox.arrivals.append(NOBODY if message is None else message.src)
    return message
