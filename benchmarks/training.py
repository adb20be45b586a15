"""With 2 processes on 2 cores, ring_all_reduce trains at least as fast as DDP (1.2M-parameter CNN; 5.8M-parameter MLP:
at least 1.15 times), param_server at least 1.1 times as fast as the same exchange done with gloo (MLP), and
fully_sharded at least 1.3 times as fast as FSDP2 (GPT of 240,000 parameters).

python -m benchmarks training --n_gpus 2
python -m benchmarks training --models gpt --batch_size 8

Samples/s of all workers together, on random 28 x 28 pixels or 64 characters, SGD with momentum. Both sides of a pair
live in the same processes and blocks of steps alternate; before any is timed, the two must have come to the same
parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks import common
from benchmarks.common import Row, Seconds, StepSettings, alternate, figures, gloo, slowest
from benchmarks.networks import new_batch, new_network, new_optimizer
from gradwire import launch
from gradwire.baselines.fully_sharded_builtin import BuiltinFullySharded
from gradwire.baselines.ring_all_reduce_builtin import BuiltinRingAllReduce
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import Transport
from strategies import FullySharded, ParamServer, Replica, RingAllReduce, Strategy


@dataclass(kw_only=True)
class GlooServer(Served):
    """The exchange of ParamServer with gloo's collectives: reduce to the server, broadcast from it."""

    steps: int = 1
    """How many steps `serve` answers."""

    name = "gloo_reduce_broadcast"

    def setup(self) -> None:
        """Allocate the vector to reduce: the gradient, and the number of its samples behind it."""
        self.g_and_n = self.replica.x.new_zeros(self.replica.x.numel() + 1)
        self.g, self.n = self.g_and_n[:-1], self.g_and_n[-1]

    def step(self, n_samples: int) -> None:
        """Worker: give n_k g_k and n_k, get x."""
        torch.mul(self.replica.collect(), n_samples, out=self.g)
        self.n.fill_(n_samples)
        dist.reduce(self.g_and_n, SERVER)
        dist.broadcast(self.replica.x, SERVER)
        self.replica.zero_grad()

    def serve(self) -> None:
        """Server: the sum of n_k g_k over the sum of n_k, and one optimizer step with it, `steps` times."""
        for _ in range(self.steps):
            self.g_and_n.zero_()
            dist.reduce(self.g_and_n, SERVER)
            self.g.div_(self.n)
            self.updater.step(self.g, int(self.n))
            dist.broadcast(self.replica.x, SERVER)

    finish = Strategy.finish  # no goodbye: the server knows how many steps there are


@dataclass(frozen=True)
class Settings(common.StepSettings):
    """Options of the training benchmark."""

    n_gpus: int = 2
    """Number of processes; a parameter server counts as one."""
    models: tuple[Literal["cnn", "mlp", "gpt"], ...] = ("cnn", "mlp")
    """Which networks; fully_sharded trains the GPT, the others the CNN and the MLP."""

    least = {"n_gpus": 2}


def block_of(
    strategy: Strategy, replica: Replica, transport: Transport, model: str, settings: StepSettings
) -> Callable[[], None]:
    """Return what takes a block of steps; a worker takes them as the training loop does, its phases recorded."""
    n, N = settings.batch_size, transport.world_size
    x, y = new_batch(transport.rank, n, model)
    phase, serves = transport.recorder.phase, strategy.roles(transport.world_size)[transport.rank] == "server"

    def block() -> None:
        for _ in range(0 if serves else settings.steps):
            replica.begin_microbatch(n, n * N, is_last=True)
            strategy.begin_step(n)
            with phase("forward"):
                loss = F.cross_entropy(replica.module(x).flatten(0, -2), y.flatten())
                loss.item()
            with phase("backward"):
                replica.backward(loss)
            strategy.step(n)
        transport.owes = ""  # steps are measured, and no end of an epoch
        if serves:
            strategy.serve()
        strategy.finish()

    return block


def on_rank(
    transport: Transport, sides: Sequence[Strategy], alike: Sequence[Sequence[str]], model: str, settings: StepSettings
) -> Seconds:
    """Return the seconds of each side's blocks on one rank, by its name; those `alike` come to the same parameters."""
    blocks = {}
    with ExitStack() as end:
        if any(isinstance(strategy, GlooServer) for strategy in sides):
            end.enter_context(gloo(transport))  # DDP brings it itself
        for strategy in sides:
            replica = strategy.make_replica(new_network(model), transport, transport.world_size)
            end.callback(replica.close)
            strategy.start(replica, transport, new_optimizer)
            blocks[strategy.name] = block_of(strategy, replica, transport, model, settings)
            blocks[strategy.name]()
        models = {strategy.name: strategy.model() for strategy in sides}
        for ours, other in alike:
            torch.testing.assert_close(models[other], models[ours], rtol=1e-3, atol=1e-5)
        return alternate(transport, blocks, settings.repeats)


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row per model and pair."""
    pairs: list[tuple[Strategy, Strategy]] = [
        (RingAllReduce(), BuiltinRingAllReduce()), (ParamServer(), GlooServer(steps=settings.steps)),
    ]  # fmt: skip
    sharded: list[tuple[Strategy, Strategy]] = [
        (FullySharded(prefetch=prefetch), BuiltinFullySharded()) for prefetch in (False, True)
    ]
    for model in settings.models:
        for pair in sharded if model == "gpt" else pairs:
            ours, peer = (side.name for side in pair)
            seconds = slowest(launch(on_rank, settings.n_gpus, pair, [(ours, peer)], model, settings))
            workers = pair[0].roles(settings.n_gpus).count("worker")
            per_s = {name: workers * settings.steps * settings.batch_size / s for name, s in seconds.items()}
            shown = f"{ours} --prefetch" if getattr(pair[0], "prefetch", False) else ours
            yield {"model": model, "n_gpus": settings.n_gpus, "strategy": shown, "peer": peer} | figures(
                samples_per_s=per_s[ours], peer_samples_per_s=per_s[peer], ratio=per_s[ours] / per_s[peer]
            )
