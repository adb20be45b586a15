"""Dual-way gradient sparsification: an asynchronous server to which, and from which, only the largest elements travel.

Everything is per tensor, or on the whole vector (`--no_per_tensor`). Worker k, with its own x_k:

    g <- g + lambda x_k                         weight decay
    u <- m u + eta g;  send s = top_R(u)        SAMomentum
    where not sent: u <- u / m
    x_k <- x_k + G                              the server's answer

Server, which keeps w_k, bit for bit worker k's x_k:

    x <- x - s
    G <- x - w_k;  G <- top_R(G);  send G;  w_k <- w_k + G

What is not sent of G stays in x - w_k, and is sent later. (Yan, Xiao, Chen, Zhou, Wu, ICPP 2020, algorithms 1
to 3.)

The paper writes x as x_0 + M and w_k as x_0 + v_k, sums that would drift apart in float32. A worker has no residual: an
element that was not sent for T - 1 steps ends as u = m u_c + eta (the sum of its T gradients), where u_c is what was
sent of it last. So momentum counts once a message. R = 1 is SGD with momentum.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gradwire.compression import Setting
from gradwire.compression.of_strategies.dgs import RecordedCodes, SAMomentum, check_sgd, differences
from gradwire.compression.sparse import check_density
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.factories import is_flat
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.traits import RETURNING, Cost, Footprint, Traffic, Traits
from gradwire.core.strategy.updater import optimizer_of
from gradwire.core.strategy.workers import SERVER


@dataclass(kw_only=True)
class DGS(Served):
    """An asynchronous server; both ways only the largest elements travel, momentum being kept by the workers (DGS).

    The model is the server's x. Each worker's x_k lacks the elements not sent yet, also from one epoch to the next.
    """

    density: float = 0.01
    """R: the share of the elements that is sent, of each tensor at least one."""
    downlink: bool = True
    """Send only the largest elements back, too; else the whole difference."""
    per_tensor: bool = True
    """Choose them in each tensor; else in the whole vector."""

    traits = Traits(
        asynchronous=True, agree=False, deaths=RETURNING, ranks=(2, None),
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

    def memory(self, role: str) -> Footprint:
        """What codes need depends on them."""
        return Footprint(other=None)

    def check(self, run: RunSize) -> None:
        """Something must be sent; the rate and the momentum are those of SGD, which the worker takes itself."""
        check_density(self.density)
        if run.optimizer:
            why = f"{self.name} is SGD with momentum"
            check_sgd(optimizer_of(torch.optim.SGD, run.optimizer, why, "take sgd"), self.name)
            if not is_flat(run.optimizer):
                raise UsageError(f"--decay: {self.name} has one decay for all of x; leave it out, and make one group")

    def setup(self) -> None:
        """Worker: u. Server: w_k of each worker."""
        super().setup()
        check_sgd(self.updater.optimizer, self.name)
        x, layout, momentum = self.replica.x, self.replica.layout, self.updater.optimizer.param_groups[0]["momentum"]
        scope = self.cost().scope
        self.codes = RecordedCodes(self.transport.recorder)
        self.velocity = SAMomentum(density=self.density)
        self.velocity.start(layout, x, Setting(scope, momentum=momentum, sends=not self.is_server))
        if self.is_server:
            self.differences, room = differences(self.density, layout, x, scope, self.transport.peers)
            # A worker that receives x starts without a difference, so checkpoints need none of these.
            self.keep("room", room, saved=False)
            for k, end in self.differences.items():
                self.keep(f"w {k}", end.w, saved=False)
            self.workers.on_sent_x = lambda k: self.differences[k].reset(x)
        else:
            self.keep("velocity", self.velocity, saved=False)

    # Worker k

    def step(self, n_samples: int) -> None:
        """Send s = top_R(u), u being m u + eta g; x_k <- x_k + G."""
        g, x = self.replica.collect(), self.replica.x
        self.scale(g, n_samples)
        s = self.codes.encode(self.velocity, g)  # u <- m u + g; s <- top_R(u); u <- u / m where not sent
        push = self.transport.isend(s, SERVER, "push", n=n_samples)
        with self.transport.recv(SERVER, "difference") as reply:
            if self.downlink:
                self.codes.add(self.velocity, reply.vector, x)
            else:
                x.add_(reply.vector)
        self.updater.samples = self.updater.processed = reply.n
        self.over = reply.n >= self.updater.until
        push.wait()
        self.replica.zero_grad()
        self.steps += 1

    def scale(self, g: torch.Tensor, n_samples: int) -> None:
        """g <- eta (g + lambda x_k). With `--clip_norm`, g is bounded first."""
        options, bound = self.updater.optimizer.param_groups[0], self.updater.clip_norm
        if bound:
            g.mul_(torch.clamp(bound / (torch.linalg.vector_norm(g) + 1e-6), max=1.0))
        rate = options["lr"]
        if self.updater.schedule:
            rate *= self.updater.schedule(self.updater.processed + n_samples / 2)
        g.add_(self.replica.x, alpha=options["weight_decay"]).mul_(rate)

    # Server

    def serve(self) -> None:
        """x <- x - s for each s that comes, and answer, until the epoch has its samples and all workers wait."""
        for push in self.workers.messages("push", until=self.updater.until, on_worker_left=self.reply):
            self.codes.add(self.velocity, push.vector, self.replica.x, alpha=-1.0)
            self.workers.record_applied(push)
            self.updater.count(push.n)
            push.release()
            self.reply()
        self.send_differences()
        self.workers.note_update()

    def reply(self) -> None:
        """Send G to the workers that wait, unless the epoch has its samples."""
        if not self.updater.is_over:
            self.send_differences()

    def send_differences(self) -> None:
        """Send G to each worker that waits."""
        for k in self.workers.take_waiting():
            self.workers.send(self.difference(k), k, "difference", n=self.updater.samples)

    def difference(self, k: int) -> torch.Tensor:
        """Return G = top_R(x - w_k), coded, or x - w_k as it is; w_k <- w_k + G."""
        x, end = self.replica.x, self.differences[k]
        return self.codes.encode(end, x) if self.downlink else end.send_whole(x)

    def known_models(self) -> Mapping[int, torch.Tensor]:
        """Return w_k of each worker k, which equals its x_k."""
        return {k: end.w for k, end in self.differences.items()} if self.is_server and self.downlink else {}

    # The model: the server's x, which a worker gets when an epoch ends

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
