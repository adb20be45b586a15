"""Which peers with shared memory are alive: pipes to the living, the launcher's notices of deaths and returns."""

import os
import select
from abc import abstractmethod
from functools import partial
from multiprocessing.connection import Connection

import torch

from records.recorder import Recorder
from transports.base import Transport
from transports.inbox import ANY
from transports.link import Link
from transports.messages import PeerLost, PeerReturned
from transports.peer import Peer
from transports.pipes import RETURNED, Endpoint

DIED = "it died"


class Watching(Transport):
    """`Transport` with a pipe from and to each peer, and one on which the launcher reports deaths."""

    def __init__(
        self,
        endpoint: Endpoint,
        device: torch.device,
        timeout: float,
        recorder: Recorder | None,
        link: Link | None = None,
    ) -> None:
        super().__init__(endpoint.rank, endpoint.world_size, device, timeout, recorder, link)
        self.rejoined = endpoint.life > 0
        self._endpoint = endpoint
        self._deaths = endpoint.deaths.fileno()
        os.set_blocking(self._deaths, False)
        self._returning: dict[int, tuple[Connection, Connection]] = {}  # pipes to ranks that ask to be let in
        self._anybody = select.poll()
        self._anybody.register(self._deaths, select.POLLIN)
        self._peers: dict[int, Peer] = {}
        self._sources: dict[int, Peer] = {}  # by the file descriptor of what comes from it
        for peer in self.peers:
            if peer in endpoint.inbound:
                self._meet(peer)
            else:
                self._lose(peer, f"rank {self.rank} was started again, and talks to others only", died=False)

    @abstractmethod
    def _read(self, peer: Peer) -> bool:
        """Take in what is in the pipe of `peer`; return whether there was anything."""

    def _meet(self, rank: int) -> None:
        """Begin to talk to a peer."""
        peer = Peer(rank, self._endpoint.inbound[rank], self._endpoint.outbound[rank], self._deaths)
        self._peers[rank] = self._sources[peer.source] = peer
        self._anybody.register(peer.source, select.POLLIN)

    def admit(self, peer: int) -> None:
        """See Transport: from here on its pipes are the new ones."""
        old = self._peers[peer]
        self._ended(old, DIED)
        if self.link:
            self.link.forget(peer)
        del self._sources[old.source]
        old.close()
        self.inbox.forget(peer)
        self._endpoint.inbound[peer], self._endpoint.outbound[peer] = self._returning.pop(peer)
        self._meet(peer)

    def may_return(self) -> bool:
        """See Transport."""
        return bool(self._endpoint.spares or self._returning)

    def _read_deaths(self) -> None:
        """Take in the launcher's notices, one byte each: the rank that died, or, plus RETURNED, was started again."""
        try:
            dead = os.read(self._deaths, 4096)
        except BlockingIOError:
            return
        if not dead:
            raise PeerLost(ANY, "the launcher is gone")
        for code in dead:
            peer = code % RETURNED
            if code >= RETURNED:
                self._returning[peer] = self._endpoint.spares.pop(0)
                self._after_its_messages(peer, partial(self.inbox.news.append, PeerReturned(peer)))
            elif peer in self._peers:
                while self._peers[peer].open and self._read(self._peers[peer]):
                    pass  # what it sent before it died comes first
                self._ended(self._peers[peer], DIED)

    def _ended(self, peer: Peer, why: str) -> None:
        """Note that `peer` sends nothing more."""
        if peer.open:
            self._lose(peer.rank, why, died=why == DIED)
            self._anybody.unregister(peer.source)
        peer.lose(died=why == DIED)
