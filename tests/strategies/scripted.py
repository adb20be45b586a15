"""A server in this process, whose workers do what a script says: no processes, no time, no luck."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import applied
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import Transport, Work
from gradwire.core.transports.messages import Delivered, Message, PeerReturned, WaitTimeout
from strategies import Replica
from tests.strategies.loops import OPTIMIZERS

Act = tuple[str, int]  # what a worker does, and its rank


class Scripted(Transport):
    """The server's view of workers that act when it waits: the next of `acts` that is possible, one at a time.

    "push": a worker that computes sends a gradient of one sample. "die", "return": it is killed, started again.
    "close": it closes its transport without a word. After the last act workers push in turn, so that epochs end.
    """

    rest: tuple[str, ...] = ("push", "return")  # what is done after the script

    def __init__(self, workers: int, acts: Iterable[Act] = ()) -> None:
        super().__init__(SERVER, workers + 1, torch.device("cpu"), 60.0, Recorder(SERVER))
        self.acts = iter(acts)
        self.until = float("inf")
        self.computing: set[int] = set()
        self.dead: set[int] = set()
        self.asking: set[int] = set()  # to be let in
        self.resting: set[int] = set()  # have pushed what they had left
        self.positions: list[tuple[int, Any]] = []  # where whom was told to begin
        self.turn = 0
        self.left = 2000  # acts after the last of the script

    # Workers

    def request(self, k: int) -> None:
        """Worker k sends what it has computed."""
        self.computing.remove(k)
        self.send_to_server(k, "gradient", n=1)

    def hear(self, k: int, tag: str, n: int) -> None:
        """Worker k takes a message of the server."""
        if tag == "parameters" and n >= self.until:
            if k not in self.computing:  # else it is the x that comes with the mean of the buffers
                self.send_to_server(k, "buffers")
        elif tag in ("parameters", "initial buffers", "mean buffers"):
            self.computing.add(k)

    def send_to_server(self, k: int, tag: str, n: float = 0) -> None:
        """Put a message of worker k into the server's inbox."""
        length = {"buffers": 0, "fetch": 0}.get(tag, 2)
        self.inbox.put(Message(k, tag, torch.zeros(length), None, 4 * length, n), 0.0)

    def act(self, what: str, k: int) -> bool:
        """Do it; return whether it was possible."""
        gone = k in self.inbox.gone
        if what == "push" and k in self.computing:
            self.request(k)
        elif what == "die" and not gone:
            self.dead.add(k)
            self.computing.discard(k)
            self._lose(k, "it died")
        elif what == "close" and not gone:
            self.computing.discard(k)
            self._lose(k, "it has closed its transport", died=False)
        elif what == "return" and k in self.dead and k not in self.asking:
            self.asking.add(k)
            self.inbox.news.append(PeerReturned(k))
        else:
            return False
        return True

    # Transport

    def _progress(self, src: int, seconds: float) -> None:
        if seconds == 0:
            return
        if any(self.act(*one) for one in self.acts):
            return
        self.left -= 1
        assert self.left, "the epochs do not end"
        in_turn = [*self.peers[self.turn :], *self.peers[: self.turn]]
        for what in self.rest:
            for k in in_turn:
                if self.act(what, k):
                    self.turn = k % len(self.peers)
                    return
        raise WaitTimeout(SERVER, seconds, "a worker that waits for the server", self.peers)

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        if tag == "position":
            self.positions.append((dst, value))
        self.hear(dst, tag, int(n))
        return Delivered(), 0

    def admit(self, peer: int) -> None:
        self.inbox.forget(peer)
        self.asking.remove(peer)
        self.dead.remove(peer)

    def may_return(self) -> bool:
        return True

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(numel, dtype=dtype)

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        return self.allocate(numel, dtype)

    def close(self) -> None:
        self._closed = True


def start(server: Served, transport: Scripted) -> None:
    """Begin the run."""
    server.start(Replica(nn.Linear(1, 1), transport), transport, OPTIMIZERS["unit"])


def epochs(server: Served, transport: Scripted, samples: int, number: int = 1) -> Iterator[int]:
    """Serve so many epochs of so many samples, one after the other."""
    for epoch in range(1, number + 1):
        transport.recorder.epoch = epoch
        server.descent.until = transport.until = epoch * samples
        server.serve()
        server.finish()
        yield epoch


def staleness(transport: Scripted) -> list[tuple[int, int]]:
    """Of what the server has applied, in its order: the worker, and how many versions late."""
    rows = applied(transport.recorder.frame())[["peer", "staleness"]]
    return [(int(peer), int(late)) for peer, late in rows.itertuples(index=False)]


class PushingWorkers(Scripted):
    """Workers of a `PushFetch`: "push" sends a movement of one sample, and "fetch" asks for x.

    After the last act, workers fetch in turn.
    """

    rest = ("fetch", "return")

    def request(self, k: int) -> None:
        """Worker k sends a push, and computes on."""
        self.send_to_server(k, "push", n=1)

    def hear(self, k: int, tag: str, n: int) -> None:
        """Worker k takes a message of the server."""
        if tag == "parameters" and n >= self.until and k not in self.resting:
            self.resting.add(k)
            self.send_to_server(k, "rest")
        elif tag == "parameters" and n >= self.until:
            self.send_to_server(k, "buffers")
        elif tag in ("parameters", "initial buffers", "mean buffers"):
            self.computing.add(k)
            self.resting.discard(k)

    def act(self, what: str, k: int) -> bool:
        """Do it; return whether it was possible."""
        if what == "fetch" and k in self.computing:
            self.computing.remove(k)
            self.send_to_server(k, "fetch")
            return True
        return super().act(what, k)
