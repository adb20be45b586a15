"""Epochs of ranks that do not wait for each other: one ends when all ranks together have its samples."""

from collections.abc import Iterator

from strategies.common.descent import Descent
from strategies.common.living import ROOT, Living
from transports.base import Message, Transport

PROGRESS, OVER = "progress", "over"  # to rank 0: the samples of a step; from it: the epoch has its samples
DONE, END = "exchanged", "end of exchanges"  # to rank 0: no answer is outstanding; from it: nor anybody else's


class CommonEpoch:
    """One rank's part in it: each rank reports its steps to rank 0, which announces the end of the epoch to all.

    Meanwhile the ranks send each other messages of the tag `request`, which the methods yield.
    """

    def __init__(self, transport: Transport, descent: Descent, living: Living, request: str) -> None:
        self._transport, self._descent = transport, descent
        self._living, self._request = living, request
        self.is_over = self._has_ended = False

    def count(self, n_samples: int) -> None:
        """Tell rank 0 of a step."""
        if self._transport.rank != ROOT:
            self._transport.isend(None, ROOT, PROGRESS, n=n_samples)

    def requests(self) -> Iterator[Message]:
        """Yield the requests that have come. On rank 0: end the epoch if it has its samples."""
        while (message := self._living.poll((self._request, PROGRESS, OVER))) is not None:
            yield from self._handle(message)
        if self._transport.rank == ROOT and not self.is_over and self._descent.is_over:
            self.is_over = True
            self._living.send_all(None, OVER)

    def end(self) -> Iterator[Message]:
        """Yield the requests that come until no rank waits for an answer: none is left for the next epoch.

        Then `descent` has the samples of all on every rank.
        """
        if self._transport.rank == ROOT:
            for _ in self._living.gather(DONE):
                pass
            yield from self.requests()
            self._living.send_all(None, END, n=self._descent.samples)
        else:
            self._transport.isend(None, ROOT, DONE)
            self._has_ended = False
            while not self._has_ended:
                yield from self._handle(self._living.receive((self._request, PROGRESS, OVER, END)))

    def _handle(self, message: Message) -> Iterator[Message]:
        if message.tag == PROGRESS:
            self._descent.samples += message.n
            self._descent.processed += message.n
        elif message.tag == OVER:
            self.is_over = True
        elif message.tag == END:
            self._has_ended = True
            self._descent.samples = self._descent.processed = message.n
        else:
            yield message
