"""With 1 to 3 workers on 2 cores, param_server trains at least 1.5 times the samples/s of the same exchange done with
gloo (5.8M-parameter MLP).

python -m benchmarks parameter_server --workers 1 2 3

Updates/s and samples/s of all workers together, on random 28 x 28 pixels, SGD with momentum on the server; `ratio` is
our samples/s to that row's. The server is one more process beside the workers, and every process has as many threads:
its share of the cores. A block is `steps` steps of every worker; asynchronous, each of them is an update. A block ends
when all of its gradients have been applied.

Gloo's collectives are entered by all ranks together, so a server that takes gradients as they come has no natural form
in them: gloo has synchronous rows only. All sides are alive at once, and their blocks alternate. Before any is timed,
the synchronous sides must have come to the same parameters; with one worker, where gradients have only one order, the
asynchronous one too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import common
from benchmarks.common import Row, figures, slowest
from benchmarks.training import GlooServer, on_rank
from gradwire import launch
from strategies import AsyncParamServer, ParamServer


@dataclass(frozen=True)
class Settings(common.StepSettings):
    """Options of the parameter-server benchmark."""

    workers: tuple[int, ...] = (1, 2, 3)
    """Numbers of workers; the server is one more process."""
    steps: int = 10


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row per number of workers and server."""
    ours, theirs, asynchronous = sides = ParamServer(), GlooServer(steps=settings.steps), AsyncParamServer()
    for n_workers in settings.workers:
        alike = [(ours.name, side.name) for side in (sides[1:] if n_workers == 1 else (theirs,))]
        seconds = slowest(launch(on_rank, n_workers + 1, sides, alike, "mlp", settings))
        steps = n_workers * settings.steps
        for side in sides:
            each_counts = side is asynchronous  # every step is an update
            mode, updates = ("asynchronous", steps) if each_counts else ("synchronous", settings.steps)
            per_s, base = 1 / seconds[side.name], 1 / seconds[(side if each_counts else ours).name]
            yield {"workers": n_workers, "mode": mode, "server": side.name} | figures(
                updates_per_s=per_s * updates, samples_per_s=per_s * steps * settings.batch_size, ratio=base / per_s
            )
