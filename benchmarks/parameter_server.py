"""With 2 workers on 2 cores, param_server and async_param_server train at least 1.3 times the samples/s of a parameter
server on Ray actors written as in Ray's documentation (5.8M-parameter MLP), and 1.2 times those of one tuned to copy
nothing but into Ray's object store; param_server at least 1.5 times those of the same exchange done with gloo.

python benchmarks/parameter_server.py --workers 1 2 3

Updates/s and samples/s of all workers together, on random 28 x 28 pixels, SGD with momentum on the server; `ratio` is
our samples/s to that row's. The server is one more process beside the workers, and every process has as many threads:
its share of the cores. A block is `steps` steps of every worker; asynchronous, each of them is an update. A block ends
when all of its gradients have been applied.

Ray is optional (pip install ray); without it its rows are left out. There are two: `ray_example`, written as
the example in Ray's documentation, and `ray_in_place`, made faster where it could be; see `ray_actors.py`. Gloo's
collectives are entered by all ranks together, so a server that takes gradients as they come has no natural form in
them: gloo has synchronous rows only.

All sides are alive at once, and their blocks alternate. Who has no turn sleeps: our ranks in a poll, Ray's actors
without a task. Rank 0, our server, is Ray's driver when it is Ray's turn. Before any is timed, the synchronous sides
must have come to the same parameters; with one worker, where gradients have only one order, the asynchronous ones too.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Seconds, Settings, alternate, figure, gloo, main, ratio, require, slowest
from benchmarks.training import GlooServer, TrainingSettings, new_batch, new_network, new_optimizer, side
from strategies import Strategy
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.common.workers import SERVER
from strategies.synchronous_server.param_server import ParamServer
from training import launch
from transports.base import Transport

MODEL = "mlp"
SYNC, ASYNC = "synchronous", "asynchronous"
RAY = "ray_example", "ray_in_place"  # PEERS of ray_actors.py, which cannot be imported without Ray
Blocks = dict[str, Callable[[], None]]  # by mode and server: see `key`


OURS = {SYNC: ParamServer.name, ASYNC: AsyncParamServer.name}
KINDS: dict[tuple[str, str], type[Strategy]] = {
    (SYNC, OURS[SYNC]): ParamServer,
    (ASYNC, OURS[ASYNC]): AsyncParamServer,
    (SYNC, GlooServer.name): GlooServer,
}


@dataclass(frozen=True)
class ServerSettings(Settings):
    """Options of the parameter-server benchmark."""

    repeats: int = 9
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    workers: tuple[int, ...] = (1, 2, 3)
    """Numbers of workers; the server is one more process."""
    steps: int = 10
    """Steps of each worker in a block."""
    batch_size: int = 64
    """Samples per worker and step."""

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(len(self.workers) > 0 and min(self.workers) >= 1, "--workers: give numbers of at least 1")
        require(len(set(self.workers)) == len(self.workers), "--workers: give each number once")
        require(self.steps >= 1, "--steps: must be at least 1")
        require(self.batch_size >= 1, "--batch_size: must be at least 1")


def ray_version() -> str | None:
    """Return which Ray is installed; None if there is none."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return None


def key(mode: str, server: str) -> str:
    """Return the name under which a server's blocks are timed."""
    return f"{mode} {server}"


def on_rank(transport: Transport, settings: ServerSettings, with_ray: bool) -> Seconds:
    """Measure all servers on one rank."""
    like = TrainingSettings(n_gpus=transport.world_size, steps=settings.steps, batch_size=settings.batch_size)
    with gloo(transport):
        sides = {key(*which): side(kind, transport, MODEL, like) for which, kind in KINDS.items()}
        for one in sides.values():
            one.block()
        x = {name: one.strategy.model() for name, one in sides.items()}
        ours = x[key(SYNC, OURS[SYNC])]
        assert_same(ours, x[key(SYNC, GlooServer.name)])
        if transport.world_size == 2:
            assert_same(ours, x[key(ASYNC, OURS[ASYNC])])
        blocks = {name: one.block for name, one in sides.items()}
        if not with_ray:
            return alternate(transport, blocks, settings.repeats)
        with ray_blocks(transport, settings, ours) as of_ray:
            return alternate(transport, blocks | of_ray, settings.repeats)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Raise AssertionError unless two sides have come to the same parameters."""
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-5)


@contextmanager
def ray_blocks(transport: Transport, settings: ServerSettings, ours: torch.Tensor) -> Iterator[Blocks]:
    """Yield the blocks of the servers on Ray's actors, warm and compared with `ours`; empty ones on ranks without them.

    Only rank 0 starts Ray.
    """
    if transport.rank != SERVER:
        yield {key(mode, name): lambda: None for name in RAY for mode in OURS}
        return
    from benchmarks.ray_actors import RayServer, ray_started

    batches = [partial(new_batch, rank, settings.batch_size) for rank in transport.peers]
    blocks: Blocks = {}
    with ray_started(len(RAY) * transport.world_size):
        for name in RAY:
            peer = RayServer(name, torch.get_num_threads(), partial(new_network, MODEL), new_optimizer, batches)
            for mode, block in ((SYNC, peer.synchronous), (ASYNC, peer.asynchronous)):
                peer.restart()
                block(settings.steps)
                if mode == SYNC or len(batches) == 1:
                    assert_same(ours, peer.parameters())
                blocks[key(mode, name)] = partial(block, settings.steps)
        yield blocks


def measure(settings: ServerSettings) -> Iterator[Row]:
    """Yield one row per number of workers, mode and server."""
    ray = ray_version()
    print("ray      ", ray or "is not installed, its rows are left out: pip install ray", flush=True)
    for n_workers in settings.workers:
        seconds = slowest(launch(on_rank, n_workers + 1, settings, ray is not None))
        steps = n_workers * settings.steps
        for mode, ours in OURS.items():
            for server in (ours, GlooServer.name, *RAY):
                if key(mode, server) not in seconds:
                    continue
                per_s = 1 / seconds[key(mode, server)]
                yield {
                    "workers": n_workers,
                    "mode": mode,
                    "server": server,
                    **figure("updates_per_s", per_s * (settings.steps if mode == SYNC else steps)),
                    **figure("samples_per_s", per_s * steps * settings.batch_size),
                    **ratio(1 / seconds[key(mode, ours)], per_s),
                }


if __name__ == "__main__":
    sys.exit(main(__doc__, ServerSettings, measure))
