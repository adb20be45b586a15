"""With 1 to 3 workers on 2 cores, param_server trains at least 1.5 times the samples/s of the same exchange done with
gloo (5.8M-parameter MLP).

python benchmarks/parameter_server.py --workers 1 2 3

Updates/s and samples/s of all workers together, on random 28 x 28 pixels, SGD with momentum on the server; `ratio` is
our samples/s to that row's. The server is one more process beside the workers, and every process has as many threads:
its share of the cores. A block is `steps` steps of every worker; asynchronous, each of them is an update. A block ends
when all of its gradients have been applied.

Gloo's collectives are entered by all ranks together, so a server that takes gradients as they come has no natural form
in them: gloo has synchronous rows only. All sides are alive at once, and their blocks alternate. Before any is timed,
the synchronous sides must have come to the same parameters; with one worker, where gradients have only one order, the
asynchronous one too.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Seconds, Settings, alternate, figure, gloo, main, ratio, slowest
from benchmarks.training import GlooServer, check_same, side
from strategies import Strategy
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.synchronous_server.param_server import ParamServer
from training import launch
from transports.base import Transport

SIDES: tuple[type[Strategy], ...] = (ParamServer, GlooServer, AsyncParamServer)


@dataclass(frozen=True)
class ServerSettings(Settings):
    """Options of the parameter-server benchmark."""

    repeats: int = 9
    workers: tuple[int, ...] = (1, 2, 3)
    """Numbers of workers; the server is one more process."""
    steps: int = 10
    """Steps of each worker in a block."""
    batch_size: int = 64
    """Samples per worker and step."""


def on_rank(transport: Transport, settings: ServerSettings) -> Seconds:
    """Measure all servers on one rank."""
    with gloo(transport):
        sides = {kind.name: side(kind(), transport, "mlp", settings.steps, settings.batch_size) for kind in SIDES}
        ours, theirs, asynchronous = sides.values()
        check_same(ours, theirs)
        if transport.world_size == 2:
            check_same(ours, asynchronous)
        return alternate(transport, {name: one.block for name, one in sides.items()}, settings.repeats)


def measure(settings: ServerSettings) -> Iterator[Row]:
    """Yield one row per number of workers and server."""
    for n_workers in settings.workers:
        seconds = slowest(launch(on_rank, n_workers + 1, settings))
        steps = n_workers * settings.steps
        for kind in SIDES:
            ours, updates = (kind, steps) if kind is AsyncParamServer else (ParamServer, settings.steps)
            per_s = 1 / seconds[kind.name]
            yield {
                "workers": n_workers,
                "mode": "asynchronous" if kind is AsyncParamServer else "synchronous",
                "server": kind.name,
                **figure("updates_per_s", per_s * updates),
                **figure("samples_per_s", per_s * steps * settings.batch_size),
                **ratio(1 / seconds[ours.name], per_s),
            }


if __name__ == "__main__":
    sys.exit(main(__doc__, ServerSettings, measure))
