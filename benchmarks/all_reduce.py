"""The ring all-reduce is at least 3 times as fast as gloo's from 10,000 elements up with 2 ranks, at least 2 times with
4 ranks on 2 cores.

python benchmarks/all_reduce.py --world_size 2 --sizes 1000 10000 100000 1000000 16000000

Microseconds per call on float32 vectors; a block is many calls back to back, its time that of the slowest rank. Every
message of ring and naive is recorded, as in a run. ratio is gloo_us / ring_us, repeat by repeat. copy_us is what the
ranks need to copy, all at once, as many bytes as each must move in the ring, 2 (N - 1) / N of the vector: the machine's
limit, of which copy_share is reached.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Seconds, Settings, alternate, figure, gloo, main, ratio, require, slowest
from strategies.common.collectives import naive_all_reduce, ring_all_reduce
from training import launch
from transports.base import Transport


@dataclass(frozen=True)
class AllReduceSettings(Settings):
    """Options of the all-reduce benchmark."""

    world_size: int = 2
    """Number of ranks."""
    sizes: tuple[int, ...] = (1000, 10_000, 100_000, 1_000_000, 16_000_000)
    """Elements of the vectors."""

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(self.world_size >= 2, "--world_size: must be at least 2")
        require(len(self.sizes) > 0 and min(self.sizes) >= 1, "--sizes: give sizes of at least 1")


def calls_in_a_block(numel: int) -> int:
    """Return how many calls take some milliseconds, or more if one does."""
    return min(400, max(4, 10_000_000 // numel))


def on_rank(transport: Transport, sizes: Sequence[int], repeats: int) -> list[Seconds]:
    """Measure all sizes on one rank."""
    with gloo(transport):
        return [measure_size(transport, numel, repeats) for numel in sizes]


def measure_size(transport: Transport, numel: int, repeats: int) -> Seconds:
    """Return the seconds of each side's blocks."""
    N = transport.world_size
    ours, theirs = transport.allocate(numel), torch.zeros(numel)
    source = torch.zeros(2 * (N - 1) * numel // N)
    target = torch.zeros_like(source)
    all_reduces: dict[str, tuple[torch.Tensor, Callable[[], object]]] = {
        "ring": (ours, lambda: ring_all_reduce(ours, transport)),
        "naive": (ours, lambda: naive_all_reduce(ours, transport)),
        "gloo": (theirs, lambda: dist.all_reduce(theirs)),
    }
    for name, (vector, all_reduce) in all_reduces.items():
        transport.barrier()  # nobody reads the vector any more
        vector.fill_(1)
        transport.barrier()
        all_reduce()
        if not bool((vector == N).all()):
            raise RuntimeError(f"{name} gave a wrong sum of {numel} elements")
    transport.barrier()
    for vector in (ours, theirs):
        vector.zero_()  # a sum of zeros stays what it is, however often it is summed again

    def block(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls_in_a_block(numel)):
                call()

        return run

    calls = {name: all_reduce for name, (_, all_reduce) in all_reduces.items()}
    calls["copy"] = lambda: target.copy_(source)
    return alternate(transport, {name: block(call) for name, call in calls.items()}, repeats)


def measure(settings: AllReduceSettings) -> Iterator[Row]:
    """Yield one row per size."""
    ranks = launch(on_rank, settings.world_size, settings.sizes, settings.repeats, record=True)
    for i, numel in enumerate(settings.sizes):
        calls = calls_in_a_block(numel)
        us = {name: seconds / calls * 1e6 for name, seconds in slowest([rank[i] for rank in ranks]).items()}
        yield {
            "world_size": settings.world_size,
            "numel": numel,
            **figure("ring_us", us["ring"]),
            **figure("naive_us", us["naive"]),
            **figure("gloo_us", us["gloo"]),
            **ratio(us["gloo"], us["ring"]),
            **figure("copy_us", us["copy"]),
            **figure("copy_share", us["copy"] / us["ring"]),
        }


if __name__ == "__main__":
    sys.exit(main(__doc__, AllReduceSettings, measure))
