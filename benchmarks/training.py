"""With 2 processes on 2 cores, ring_all_reduce trains at least as fast as DDP (1.2M-parameter CNN; 5.8M-parameter MLP:
at least 1.15 times), and param_server at least 1.1 times as fast as the same exchange done with gloo (MLP).

python benchmarks/training.py --n_gpus 2

Samples/s of all workers together, on random 28 x 28 pixels, SGD with momentum. Both sides of a pair live in the same
processes and blocks of steps alternate; before any is timed, the two must have come to the same parameters.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import networks
from benchmarks.common import Row, Seconds, Settings, alternate, figure, gloo, main, ratio, require, slowest, train
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import Replica, Strategy
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.common.builtin import Builtin
from strategies.common.traits import Cost
from strategies.common.workers import SERVER
from strategies.synchronous_server.param_server import ParamServer
from training import launch
from transports.base import Transport

MODELS = {"cnn": networks.cnn, "mlp": networks.mlp}
INPUT_SHAPE, N_CLASSES = (1, 28, 28), 10


@dataclass(kw_only=True)
class GlooServer(Strategy):
    """The exchange of ParamServer with gloo's collectives: reduce to the server, broadcast from it."""

    steps: int = 1
    """How many steps `serve` answers."""

    name = "gloo_reduce_broadcast"

    def cost(self, kind: str | None = None) -> Cost:
        """As ParamServer."""
        return ParamServer().cost(kind)

    def roles(self, world_size: int) -> list[str]:
        """As ParamServer."""
        return ParamServer().roles(world_size)

    def setup(self) -> None:
        """Allocate what is reduced: the gradient, and the number of its samples behind it."""
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
            self.descent.step(self.g, int(self.n))
            dist.broadcast(self.replica.x, SERVER)


PAIRS: dict[str, tuple[type[Strategy], type[Strategy]]] = {
    RingAllReduce.name: (RingAllReduce, BuiltinRingAllReduce),
    ParamServer.name: (ParamServer, GlooServer),
}


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """Options of the training benchmark."""

    repeats: int = 9
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    n_gpus: int = 2
    """Number of processes; a parameter server counts as one."""
    steps: int = 5
    """Steps in a block."""
    batch_size: int = 64
    """Samples per worker and step."""
    models: tuple[str, ...] = tuple(MODELS)
    """Which networks: cnn, mlp."""

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(self.n_gpus >= 2, "--n_gpus: must be at least 2")
        require(self.steps >= 1, "--steps: must be at least 1")
        require(self.batch_size >= 1, "--batch_size: must be at least 1")
        require(set(self.models) <= set(MODELS), f"--models: there are {', '.join(MODELS)}")


def new_network(model: str) -> nn.Module:
    """Return the network, its parameters the same in every process."""
    torch.manual_seed(0)
    return MODELS[model](INPUT_SHAPE, N_CLASSES)


def new_optimizer(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer that all sides have."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def new_batch(rank: int, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch that a rank takes in every step."""
    torch.manual_seed(1 + rank)
    return torch.rand(batch_size, *INPUT_SHAPE), torch.randint(N_CLASSES, (batch_size,))


def side(kind: type[Strategy], transport: Transport, model: str, settings: TrainingSettings) -> "Side":
    """Return one side, ready for its first step."""
    strategy = GlooServer(steps=settings.steps) if kind is GlooServer else kind()
    module = network = new_network(model)
    if isinstance(strategy, Builtin):
        module = strategy.wrap(network, transport, settings.n_gpus, new_optimizer)
    else:
        strategy.start(Replica(network, transport), transport, new_optimizer)
    x, y = new_batch(transport.rank, settings.batch_size)

    def block() -> None:
        if kind().roles(transport.world_size)[transport.rank] == "server":
            strategy.serve()
        else:
            train(strategy, module, lambda: (x, y), settings.steps)
        strategy.finish()

    return Side(strategy, block)


@dataclass
class Side:
    """A strategy and a block of its steps."""

    strategy: Strategy
    block: Callable[[], None]


def on_rank(transport: Transport, pair: str, model: str, settings: TrainingSettings) -> Seconds:
    """Measure one pair with one model on one rank."""
    if pair == ParamServer.name:
        with gloo(transport):
            return measure_pair(transport, pair, model, settings)
    return measure_pair(transport, pair, model, settings)  # DDP brings gloo with it


def measure_pair(transport: Transport, pair: str, model: str, settings: TrainingSettings) -> Seconds:
    """Return the seconds of each side's blocks."""
    ours, peer = (side(kind, transport, model, settings) for kind in PAIRS[pair])
    ours.block()
    peer.block()
    torch.testing.assert_close(ours.strategy.model(), peer.strategy.model(), rtol=1e-3, atol=1e-5)
    seconds = alternate(transport, {"ours": ours.block, "peer": peer.block}, settings.repeats)
    if isinstance(peer.strategy, Builtin):
        peer.strategy.close()
    return seconds


def measure(settings: TrainingSettings) -> Iterator[Row]:
    """Yield one row per model and pair."""
    for model in settings.models:
        for pair, (ours, peer) in PAIRS.items():
            seconds = slowest(launch(on_rank, settings.n_gpus, pair, model, settings))
            workers = ours().roles(settings.n_gpus).count("worker")
            samples = workers * settings.steps * settings.batch_size
            ours_per_s, peer_per_s = samples / seconds["ours"], samples / seconds["peer"]
            yield {
                "model": model,
                "n_gpus": settings.n_gpus,
                "strategy": pair,
                "peer": peer.name,
                **figure("samples_per_s", ours_per_s),
                **figure("peer_samples_per_s", peer_per_s),
                **ratio(ours_per_s, peer_per_s),
            }


if __name__ == "__main__":
    sys.exit(main(__doc__, TrainingSettings, measure))
