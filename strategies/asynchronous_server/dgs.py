"""Dual-way gradient sparsification: an asynchronous server to which, and from which, only the largest elements travel.

Everything is per tensor, or on the whole vector (`--no_per_tensor`). Worker k, with its own x_k:

    g <- g + lambda x_k                         weight decay
    u <- m u + eta g;  send s = top_R(u)        SAMomentum
    where not sent: u <- u / m
    x_k <- x_k + G                              the server's answer

There is no residual: an element that was not sent for T - 1 steps ends as u = m u_c + eta (the sum of its T gradients),
u_c being what was sent of it last, so momentum counts once a message. R = 1 is SGD with momentum.

Server, which keeps w_k, all that worker k knows of x:

    x <- x - s
    G <- x - w_k;  G <- top_R(G);  send G;  w_k <- w_k + G

w_k is bit for bit worker k's x_k. What is not sent of G stays in x - w_k, and is sent later. (Yan, Xiao, Chen, Zhou,
Wu, 2020, Dual-way gradient sparsification for asynchronous distributed deep learning, ICPP 2020, algorithms 1 to 3.
There x is written as x_0 + M, w_k as x_0 + v_k: sums that would drift apart in float32.)
"""

from dataclasses import dataclass
from typing import TypeVar

import torch

from compression import Code, Setting
from compression.base import check_finite
from compression.sparse import Sparse, check_density
from records.errors import UsageError
from strategies.common.base import RunSize
from strategies.common.served import Served
from strategies.common.traits import RETURNING, Cost, Traffic, Traits
from strategies.common.workers import SERVER
from transports.base import Message

C = TypeVar("C", bound=Sparse)


@dataclass(kw_only=True)
class SAMomentum(Sparse):
    """A worker's end: sends the largest elements of its velocity.

    What is kept is m u, which the next step needs: m times what was sent and, elsewhere, m (u / m), that is u.
    """

    def setup(self) -> None:
        """u <- 0."""
        super().setup()
        self.mu, self.room = self.kept(), self.kept()

    def encode(self, vector: torch.Tensor) -> Code:
        """Return top_R(u), with u <- m u + `vector`, which is eta g [n]."""
        check_finite(vector, self.layout)
        u = self.mu.add_(vector)
        code, sent = self.send(self.room.copy_(u))
        self.mu.index_copy_(0, sent, u.index_select(0, sent).mul_(self.setting.momentum))
        return code


@dataclass(kw_only=True)
class Difference(Sparse):
    """The server's end of the way back: sends the largest elements of what the worker does not know."""

    def setup(self) -> None:
        """Allocate w."""
        super().setup()
        self.w, self.room = self.kept(), self.kept()

    def encode(self, vector: torch.Tensor) -> Code:
        """Return top_R(x - w), `vector` being x [n]; w <- w + what is sent."""
        code, _ = self.send(torch.sub(vector, self.w, out=self.room))
        self.add(code.data, self.w)
        return code


@dataclass(kw_only=True)
class DGS(Served):
    """An asynchronous server; both ways only the largest elements travel, momentum being kept by the workers (DGS).

    The model is the server's x. Each worker's x_k lacks what was not sent yet, also from one epoch to the next.
    """

    density: float = 0.01
    """R: the share of the elements that is sent, of each tensor at least one."""
    downlink: bool = True
    """Send only the largest elements back, too; else the whole difference."""
    per_tensor: bool = True
    """Choose them in each tensor; else in the whole vector."""

    traits = Traits(
        asynchronous=True, agree=False, ranks=(2, None), deaths=RETURNING,
        defaults={"momentum": 0.7, "lr": 0.03},  # the paper's momentum, which makes steps 1 / (1 - 0.7) times as long
    )  # fmt: skip

    def cost(self, kind: str | None = None) -> Cost:
        """A code from each worker, and one to each, or the difference itself."""
        return Cost(
            worker=Traffic("1", "G"),
            server=Traffic("N - 1", "(N - 1) G" if self.downlink else "(N - 1) P"),
            code=SAMomentum(density=self.density),
            scope="tensor" if self.per_tensor else "vector",
        )

    def check(self, run: RunSize) -> None:
        """Something must be sent; the rate and the momentum are those of SGD, which the worker takes itself."""
        check_density(self.density)
        if run.optimizer:
            self.check_sgd(run.optimizer([torch.nn.Parameter(torch.zeros(1))]))

    def check_sgd(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that the optimizer is SGD with momentum. Raises UsageError."""
        if not isinstance(optimizer, torch.optim.SGD):
            name = type(optimizer).__name__.lower()
            raise UsageError(f"--optimizer {name}: {self.name} is SGD with momentum; take sgd")
        options = optimizer.param_groups[0]
        for name, value in {"nesterov": False, "dampening": 0, "maximize": False}.items():
            if options[name] != value:
                raise UsageError(f"--optimizer_options {name}={options[name]}: {self.name} knows no such form; omit it")
        if not options["momentum"] > 0:
            raise UsageError(f"--momentum {options['momentum']}: {self.name} divides by it; give one such as 0.7")

    def setup(self) -> None:
        """Worker: u. Server: w_k of each worker."""
        super().setup()
        self.check_sgd(self.descent.optimizer)
        self.sgd = self.descent.optimizer.param_groups[0]
        self.reader = self.made(SAMomentum(density=self.density), sends=False)
        if self.is_server:
            self.room = torch.empty_like(self.replica.x)
            self.differences = {k: self.made(Difference(density=self.density)) for k in self.transport.peers}
            self.keep("room", self.room, saved=False)  # whoever continues begins with x: nothing is unsent
            for k, end in self.differences.items():
                end.room = self.room  # they work one after the other
                self.keep(f"w {k}", end.w, saved=False)
            self.workers.on_sent_x = self.note_all_sent
        else:
            self.velocity = self.made(SAMomentum(density=self.density))
            self.keep("velocity", self.velocity, saved=False)

    def made(self, codec: C, sends: bool = True) -> C:
        """Return the codec, started."""
        setting = Setting(self.cost().scope, momentum=self.sgd["momentum"], sends=sends)
        codec.start(self.replica.layout, self.replica.x, setting)
        return codec

    def encode(self, codec: Sparse, vector: torch.Tensor) -> torch.Tensor:
        """Return the code of a vector [n], which is recorded."""
        recorder = self.transport.recorder
        with recorder.phase("compress", work="encode"):
            code = codec.encode(vector)
        recorder.count_code(code.values, code.indices, code.headers, vector.nbytes)
        return code.data

    def add(self, message: Message, alpha: float = 1.0) -> None:
        """x <- x + alpha (the vector of a message)."""
        with self.transport.recorder.phase("compress", work="decode"):
            self.reader.add(message.vector, self.replica.x, alpha)

    def join(self, resumed: bool) -> None:
        """All begin with the server's x."""
        super().join(resumed)
        self.shown = self.replica.x if self.is_server else self.replica.x.clone()

    def finish(self) -> None:
        """End the epoch. The workers are sent x too, but go on with their x_k."""
        super().finish()
        if self.is_server:
            for k in sorted(self.workers.alive):
                self.workers.send_copy(self.replica.x, k, 0, "model")
        else:
            self.transport.recv(SERVER, "model").copy_to(self.shown)

    def model(self) -> torch.Tensor:
        """Return the server's x [n], on a worker as it was when the epoch ended."""
        return self.shown

    # Worker

    def step(self, n_samples: int) -> None:
        """Send s = top_R(u), u being m u + eta g; x_k <- x_k + G."""
        g = self.scaled(self.replica.collect(), n_samples)
        push = self.transport.isend(self.encode(self.velocity, g), SERVER, "push", n=n_samples)
        with self.transport.recv(SERVER, "difference") as reply:
            if self.downlink:
                self.add(reply)
            else:
                self.replica.x.add_(reply.vector)
        self.descent.samples = self.descent.processed = reply.n
        self.over = reply.n >= self.descent.until
        push.wait()
        self.replica.zero_grad()
        self.steps += 1

    def scaled(self, g: torch.Tensor, n_samples: int) -> torch.Tensor:
        """Return eta (g + lambda x_k), in place; the norm of g is bounded first."""
        descent = self.descent
        rate = self.sgd["lr"]
        if descent.schedule:
            rate *= descent.schedule(descent.processed + n_samples / 2)
        if descent.clip_norm:
            g.mul_(torch.clamp(descent.clip_norm / (torch.linalg.vector_norm(g) + 1e-6), max=1.0))
        return g.add_(self.replica.x, alpha=self.sgd["weight_decay"]).mul_(rate)

    # Server

    def serve(self) -> None:
        """Subtract what is pushed and answer, until the epoch has its samples and all workers wait."""
        for push in self.workers.messages("push", until=self.descent.until, on_departure=self.reply):
            self.add(push, alpha=-1.0)
            self.workers.record_applied(push)
            self.descent.count(push.n)
            push.release()
            self.reply()
        self.send_differences()
        self.workers.note_update()

    def reply(self) -> None:
        """Send G to the workers that wait, unless the epoch has its samples."""
        if not self.descent.is_over:
            self.send_differences()

    def send_differences(self) -> None:
        """Send G to each worker that waits."""
        for k in self.workers.take_waiting():
            self.workers.send(self.difference(k), k, "difference", n=self.descent.samples)

    def difference(self, k: int) -> torch.Tensor:
        """Return G of worker k, coded or as it is; w_k <- w_k + G."""
        x, end = self.replica.x, self.differences[k]
        if self.downlink:
            return self.encode(end, x)
        G = x - end.w
        end.w.add_(G)
        return G

    def note_all_sent(self, k: int) -> None:
        """Worker k is sent all of x: w_k <- x."""
        self.differences[k].w.copy_(self.replica.x)
