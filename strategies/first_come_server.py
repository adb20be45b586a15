"""What the servers that do not wait for all their workers share: who takes part, and whose message comes next.

The server takes messages in the order in which they come. That order is all that two runs of it can differ in, so it
is kept (`arrivals`), and a run that is given it again (`replay`) ends with the same bits. The server holds all that
matters: a worker may die, and one that is started again is given the server's x and goes on.
"""

from typing import Any

import torch

from strategies.param_server import SERVER, ParamServer
from transports.base import ANY, Message, PeerLost, PeerReturned

_FOR_EVER = 1e6  # seconds


class FirstComeServer(ParamServer):
    """One server, and N - 1 workers that come and go."""

    replicas_agree = False
    own_pace = True
    workers_may_die = True

    def prepare(self) -> None:
        """Have an answer for each worker: in a buffer of its own, for x changes while one reads."""
        super().prepare()
        n, transport = self.replica.x.numel(), self.transport
        self.active = set(transport.peers)  # the workers that are alive
        self.here = set(transport.peers)  # those of them that have not said goodbye in this epoch
        self.clocks = dict.fromkeys(transport.peers, 0)  # how many gradients came from each
        self.read = dict.fromkeys(transport.peers, 0)  # the version of x that each computes on
        self.arrivals: list[int] = []
        self.deaths: list[dict[str, Any]] = []
        self.answers = {
            k: transport.allocate(n if transport.rank == SERVER else 0, self.replica.x.dtype) for k in transport.peers
        }

    @property
    def version(self) -> int:
        """Server: the version of x, the number of updates that have been made."""
        return self.steps

    def share(self) -> None:
        """Give every worker the epoch, how far it is, x and b."""
        if self.transport.rank == SERVER:
            for k in self.transport.peers:
                self.welcome(k)
            return
        # A server that evaluates lets nobody in, however long it takes; should it die, that is told at once.
        patience = _FOR_EVER if self.transport.rejoined else self.transport.timeout
        position = self.transport.recv(SERVER, "position", patience)
        assert position is not None, "only a poll returns None"
        self.transport.recorder.epoch, self.samples, self.steps = position.object
        self.processed = self.samples
        self.transport.recv(SERVER, "initial parameters").copy_to(self.replica.x)
        self.transport.recv(SERVER, "initial buffers").copy_to(self.replica.b)

    def welcome(self, k: int) -> None:
        """Server: let worker k begin here, with the work of the slowest still to do."""
        slowest = min((self.clocks[other] for other in self.here - {k}), default=0)
        self.clocks[k] = max(self.clocks[k], slowest)
        self.read[k] = self.version
        self.answers[k].copy_(self.replica.x)
        self.send((self.transport.recorder.epoch, self.samples, self.clocks[k]), k, "position")
        self.send(self.answers[k], k, "initial parameters")
        self.send(self.replica.b.clone(), k, "initial buffers")

    def receive(self, src: int = ANY) -> Message | None:
        """Server: return the next "push" of `src` or of whoever comes first; None if a worker came or went instead.

        Raises PeerLost when nobody is left to wait for.
        """
        if self.replay:
            was = next(self.replay, None)
            if was is None or src not in (ANY, was):
                raise RuntimeError("the run that is replayed had other messages")
            src = was
        try:
            push = self.transport.recv(src, "push")
        except PeerLost as lost:
            self.leave(lost.rank)
            if lost.rank == ANY or self.replay or not (self.active or self.transport.may_return()):
                raise
            return None
        except PeerReturned as returned:
            self.leave(returned.rank)
            self.come_back(returned.rank)
            return None
        if push.src not in self.active:  # it died after it had sent this
            push.release()
            return None
        self.arrivals.append(push.src)
        if push.tensor is None and push.object is None:  # goodbye
            self.here.discard(push.src)
            return None
        return push

    def leave(self, k: int) -> None:
        """Server: worker k is dead."""
        if k in self.active:
            self.deaths.append({"rank": k, "samples": self.samples, "returned": False})
        self.active.discard(k)
        self.here.discard(k)

    def come_back(self, k: int) -> None:
        """Server: worker k was started again."""
        self.transport.admit(k)
        self.active.add(k)
        self.here.add(k)
        [death for death in self.deaths if death["rank"] == k][-1]["returned"] = True
        self.welcome(k)

    def send(self, value: Any, k: int, tag: str) -> None:
        """Server: send to worker k, if it is alive."""
        try:
            self.transport.isend(value, k, tag)
        except PeerLost:
            self.leave(k)

    def finish(self) -> None:
        """Average the buffers; where the end of an epoch is not known to the server, say goodbye first."""
        self.settle()
        if self.transport.rank != SERVER and self.goal is None:
            self.transport.isend(None, SERVER, "push")
        self.average_buffers()

    def average_buffers(self) -> None:
        """Average the buffers b of the workers that are alive on the server, which sends the mean to them."""
        if self.transport.rank != SERVER:
            super().average_buffers()
        elif self.replica.b.numel():
            total, n = torch.zeros_like(self.replica.b), 0
            for k in sorted(self.active):
                try:
                    with self.transport.recv(k, "buffers") as buffers:
                        total.add_(buffers.vector)
                        n += 1
                except PeerLost:
                    self.leave(k)
            if n:
                self.replica.b.copy_(total.div_(n))
            for k in sorted(self.active):
                self.send(self.replica.b.clone(), k, "mean buffers")

    def tell(self, value: Any, tag: str) -> None:
        """Send to the workers that are alive."""
        for k in sorted(self.active):
            self.send(value, k, tag)

    def state_dict(self) -> dict[str, Any]:
        """Server: also the steps, and each worker's gradients."""
        return super().state_dict() | {"steps": self.steps, "clocks": self.clocks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Server: go on from there; `share` then tells the workers."""
        super().load_state_dict(state)
        self.steps, self.clocks = state["steps"], dict(state["clocks"])
